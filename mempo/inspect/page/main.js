// State, keys and the address: what is shown survives a reload.

const data = JSON.parse(document.getElementById('data').textContent);
const rows = data.trajectories.map((one, index) => rowOf(one, data.tasks[one.task], index));
const byId = (id) => document.getElementById(id);
const form = byId('filter');
const split = document.querySelector('.split');
const state = { view: 'overview', sort: 'epoch', descending: true, selected: null };
let visible = []; // rows that pass the filter, sorted
let shown = -1; // the trajectory in the detail

const table = makeTable(byId('list'), data, (index) => open(index), (key) => {
  state.descending = state.sort === key ? !state.descending : ['reward', 'memory', 'lost', 'epoch'].includes(key);
  state.sort = key;
  refresh();
});

// Typing asks once, not with every letter.
let typing = 0;
function refreshSoon() {
  clearTimeout(typing);
  typing = setTimeout(refresh, 120);
}

function filterValues() {
  const values = Object.fromEntries(new FormData(form));
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ''));
}

function refresh() {
  for (const input of form.querySelectorAll('.range input')) {
    input.setCustomValidity(Number.isNaN(asNumber(input.value)) ? 'a number' : '');
  }
  const filter = filterValues();
  visible = sorted(rows.filter((row) => matches(row, filter)), state.sort, state.descending);
  const none = rows.length ? 'Nothing passes the filter; Clear removes it.' : 'No trajectories yet.';
  table.show(visible, state.sort, state.descending, none);
  byId('count').textContent = visible.length === data.total ? `${data.total}` : `${visible.length} of ${data.total}`;
  if (!visible.some((row) => row.index === state.selected)) state.selected = visible.length ? visible[0].index : null;
  table.select(state.selected);
  if (state.selected !== shown) showSelected();
  remember();
}

// A held key moves faster than a long trajectory is drawn: only the last one of a frame is.
let drawing = 0;
function showSelected() {
  table.select(state.selected);
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(drawSelected);
}

function drawSelected() {
  cancelAnimationFrame(drawing);
  shown = state.selected;
  const chosen = shown === null ? null : data.trajectories[shown];
  const actions = { group: () => setView('group'), round: goToRound };
  byId('detail').replaceChildren(...(chosen ? trajectoryView(chosen, data, actions).filter(Boolean) : []));
  byId('detail').scrollTo({ top: 0, behavior: 'instant' });
  if (state.view === 'group') showGroup();
}

function groupMembers(index) {
  const { task, epoch } = rows[index];
  return rows.filter((row) => row.task === task && row.epoch === epoch).map((row) => row.index).sort((a, b) => data.trajectories[a].sample - data.trajectories[b].sample);
}

function showGroup() {
  const place = byId('group');
  if (state.selected === null) {
    place.replaceChildren(node('div', null, node('p', { class: 'soft' }, 'No trajectory is chosen.')));
    return;
  }
  const left = place.scrollLeft;
  const members = groupMembers(state.selected);
  const actions = { open: (index) => { open(index); setView('browse'); } };
  place.replaceChildren(node('div', null, groupView(members, state.selected, data, actions)));
  place.scrollLeft = left;
  const chosen = place.querySelector('thead .chosen');
  if (chosen) chosen.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

function setView(view) {
  state.view = view;
  for (const name of ['overview', 'browse', 'group']) byId(name).hidden = name !== view;
  for (const button of document.querySelectorAll('[data-view]')) {
    button.setAttribute('aria-pressed', String(button.dataset.view === view));
  }
  if (view === 'group') showGroup();
  if (view === 'browse') table.select(state.selected);
  remember();
}

function open(index) {
  state.selected = index;
  split.classList.add('open');
  showSelected();
  remember();
}

function move(step) {
  const position = visible.findIndex((row) => row.index === state.selected);
  const next = visible[Math.min(visible.length - 1, Math.max(0, position + step))];
  if (next && next.index !== state.selected) {
    state.selected = next.index;
    showSelected();
    remember();
  }
}

// Side by side: the next task of the list.
function moveGroup(step) {
  const key = (index) => `${rows[index].epoch}/${rows[index].task}`;
  let position = visible.findIndex((row) => row.index === state.selected);
  const now = state.selected === null ? '' : key(state.selected);
  while (visible[position] && key(visible[position].index) === now) position += step;
  if (visible[position]) {
    state.selected = visible[position].index;
    showSelected();
    remember();
  }
}

function moveSample(step) {
  if (state.selected === null) return;
  const members = groupMembers(state.selected);
  const next = members[members.indexOf(state.selected) + step];
  if (next === undefined) return;
  state.selected = next;
  showSelected();
  remember();
}

function goToRound(number) {
  const place = byId(`round-${number}`);
  if (!place) return;
  for (const one of document.querySelectorAll('.round.current')) one.classList.remove('current');
  place.classList.add('current');
  place.scrollIntoView({ block: 'start' });
}

function moveRound(step) {
  if (state.selected === null) return;
  const count = data.trajectories[state.selected].rounds.length;
  const current = document.querySelector('.round.current');
  const number = current ? Number(current.id.slice('round-'.length)) + step : 1;
  goToRound(Math.min(count, Math.max(1, number)));
}

function back() {
  const field = document.activeElement;
  if (field && form.contains(field)) {
    field.blur();
    byId('list').focus();
  } else if (state.view === 'group') setView('browse');
  else if (state.view === 'browse' && split.classList.contains('open') && matchMedia('(max-width: 900px)').matches) {
    split.classList.remove('open');
    table.select(state.selected);
  } else if (state.view === 'browse') setView('overview');
}

const THEMES = ['', 'light', 'dark'];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId('theme').textContent = { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' }[theme];
  try { localStorage.setItem('mempo-theme', theme); } catch { /* not kept, no harm */ }
}
function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || '') + 1) % THEMES.length]);
}

const KEYS = {
  j: () => (state.view === 'group' ? moveGroup(1) : move(1)),
  k: () => (state.view === 'group' ? moveGroup(-1) : move(-1)),
  ArrowRight: () => (state.view === 'group' ? moveSample(1) : moveRound(1)),
  ArrowLeft: () => (state.view === 'group' ? moveSample(-1) : moveRound(-1)),
  Enter: () => { if (state.selected !== null) { setView('browse'); open(state.selected); byId('detail').focus(); } },
  '/': () => { setView('browse'); byId('filter-text').focus(); byId('filter-text').select(); },
  o: () => setView('overview'),
  t: () => setView('browse'),
  g: () => setView('group'),
  d: nextTheme,
  '?': () => byId('help').showModal(),
};
KEYS.ArrowDown = KEYS.j;
KEYS.ArrowUp = KEYS.k;

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open) return;
  if (event.key === 'Escape') {
    back();
    event.preventDefault();
    return;
  }
  const target = event.target instanceof Element ? event.target : document.body;
  if (target.matches('input, select')) {
    if (event.key === 'Enter') { byId('list').focus(); event.preventDefault(); }
    return;
  }
  if (event.key === 'Enter' && target.closest('button, summary')) return;
  const arrow = event.key.startsWith('Arrow');
  if (arrow && state.view === 'overview') return;
  // A focused text is scrolled by the arrows; j and k move on all the same.
  if (['ArrowDown', 'ArrowUp'].includes(event.key) && target.closest('#detail')) return;
  if (['j', 'k'].includes(event.key) && state.view === 'overview') setView('browse');
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

// The address after # holds the state, so that a reload and the browser's Back keep the place. A
// trajectory is named by epoch, task and sample: positions move while a run goes on. Written a
// moment later, since browsers limit how often a page may.
let writing = 0;
function remember() {
  clearTimeout(writing);
  writing = setTimeout(writeState, 150);
}

function writeState() {
  const chosen = state.selected === null ? null : rows[state.selected];
  const kept = new URLSearchParams({
    view: state.view,
    sort: state.sort,
    down: state.descending ? '1' : '0',
    ...filterValues(),
    ...(chosen ? { at: `${chosen.epoch}/${chosen.sample}/${chosen.task}` } : {}),
  });
  history.replaceState(null, '', `#${kept}`);
}

function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const field of form.elements) {
    if (field.name && kept.has(field.name)) {
      if (field.type === 'checkbox') field.checked = true;
      else field.value = kept.get(field.name);
    }
  }
  if (COLUMNS.some(([key]) => key === kept.get('sort'))) state.sort = kept.get('sort');
  if (kept.has('down')) state.descending = kept.get('down') === '1';
  const row = rows.find((one) => `${one.epoch}/${one.sample}/${one.task}` === kept.get('at'));
  if (row) state.selected = row.index;
  return ['overview', 'browse', 'group'].includes(kept.get('view')) ? kept.get('view') : 'overview';
}

// Where each part was scrolled to, for the page that replaces this one.
const SCROLLED = ['overview', 'list', 'detail', 'group'];
function keepScroll() {
  const kept = Object.fromEntries(SCROLLED.map((name) => [name, [byId(name).scrollLeft, byId(name).scrollTop]]));
  try { sessionStorage.setItem('mempo-scroll', JSON.stringify(kept)); } catch { /* starts at the top */ }
}

function restoreScroll() {
  try {
    const kept = JSON.parse(sessionStorage.getItem('mempo-scroll') || '{}');
    sessionStorage.removeItem('mempo-scroll');
    for (const name of SCROLLED) if (kept[name]) byId(name).scrollTo({ left: kept[name][0], top: kept[name][1], behavior: 'instant' });
  } catch { /* starts at the top */ }
}

function follow() {
  restoreScroll();
  setInterval(async () => {
    if (!byId('follow').checked || document.hidden) return;
    try {
      const answer = await fetch('version', { cache: 'no-store' });
      if (answer.ok && (await answer.text()) !== data.version) {
        writeState();
        keepScroll();
        location.reload();
      }
    } catch { /* the server is gone; the page stays readable */ }
  }, 3000);
}

for (const ending of [...new Set(rows.map((row) => row.ending).filter(Boolean))].sort()) {
  form.elements.ending.append(node('option', { value: ending }, ending));
}
let stored = '';
try { stored = localStorage.getItem('mempo-theme') || ''; } catch { /* as the system says */ }
setTheme(THEMES.includes(stored) ? stored : '');
for (const button of document.querySelectorAll('[data-view]')) {
  button.addEventListener('click', () => setView(button.dataset.view));
}
byId('theme').addEventListener('click', nextTheme);
byId('help-button').addEventListener('click', () => byId('help').showModal());
form.addEventListener('submit', (event) => event.preventDefault());
form.addEventListener('input', refreshSoon);
form.addEventListener('reset', () => setTimeout(refresh));
wireCharts(data, (epoch) => {
  form.reset();
  form.elements.epochFrom.value = epoch;
  form.elements.epochTo.value = epoch;
  setView('browse');
  setTimeout(refresh);
});
const firstView = recall();
refresh();
drawSelected();
setView(firstView);
if (data.version !== null) follow();
