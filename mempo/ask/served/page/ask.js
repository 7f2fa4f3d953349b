// Asks, several questions at a time, each over a request of its own.

// Browsers hold six connections to a server; one stays free.
const AT_ONCE = 5;
const THEMES = ['', 'light', 'dark'];
const byId = (id) => document.getElementById(id);
const waiting = [];
let going = 0;
let token = null;

function send(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { ...options, headers, cache: 'no-store' });
}

async function faultOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

async function eachLine(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    lines.filter(Boolean).forEach((line) => take(JSON.parse(line)));
  }
}

async function follow(asked) {
  const { card, question, context, abort } = asked;
  let ended = false;
  try {
    const response = await send('/page/ask', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ question, context }),
      signal: abort.signal,
    });
    if (!response.ok) return card.fail(await faultOf(response));
    await eachLine(response.body, (event) => {
      ended = ended || event.event === 'ended' || event.event === 'failed';
      card.take(event);
    });
    if (!ended) card.fail('the server closed the connection');
  } catch (error) {
    card.fail(abort.signal.aborted ? 'stopped' : `the server cannot be reached (${error.message})`);
  }
  return undefined;
}

function tellGoing() {
  const all = going + waiting.length;
  byId('going').textContent = all ? `${all} question${all === 1 ? '' : 's'} on the way` : '';
}

function begin() {
  while (going < AT_ONCE && waiting.length) {
    going += 1;
    follow(waiting.shift()).finally(() => { going -= 1; begin(); });
  }
  tellGoing();
}

function stop(asked) {
  const place = waiting.indexOf(asked);
  asked.abort.abort();
  if (place < 0) return;
  waiting.splice(place, 1);
  asked.card.fail('stopped');
  tellGoing();
}

function ask(question) {
  const asked = { question, context: byId('context').value, abort: new AbortController() };
  asked.card = new Card(question, asked.context, () => stop(asked));
  byId('questions').prepend(asked.card.element);
  waiting.push(asked);
  begin();
}

function submit(event) {
  event.preventDefault();
  const field = byId('question');
  if (field.value.trim()) ask(field.value.trim());
  field.value = '';
  field.focus();
}

function show(about) {
  document.title = `${about.name} · mempo ask`;
  byId('name').textContent = about.name;
  byId('name').title = about.model;
  byId('context').replaceChildren(...about.contexts.map((name) => node('option', { value: name }, name)));
  byId('context').value = about.context;
  byId('context-label').hidden = false;
  byId('token-form').hidden = true;
  byId('ask').hidden = false;
  byId('example').hidden = about.example === null;
  byId('example').addEventListener('click', () => {
    byId('question').value = about.example;
    byId('question').focus();
  });
  byId('question').focus();
}

async function start() {
  try {
    const response = await send('/page/about');
    if (response.ok) return show(await response.json());
    byId('token-form').hidden = false;
    if (response.status !== 401) byId('token-told').textContent = await faultOf(response);
    else byId('token-told').textContent = token === null ? '' : 'That is not its token.';
    byId('token').focus();
  } catch (error) {
    byId('token-form').hidden = false;
    byId('token-told').textContent = `the server cannot be reached (${error.message})`;
  }
  return undefined;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId('theme').textContent = `Theme: ${theme || 'system'}`;
  try { localStorage.setItem('mempo-theme', theme); } catch { /* not kept, no harm */ }
}

let stored = '';
try { stored = localStorage.getItem('mempo-theme') || ''; } catch { /* as the system says */ }
setTheme(THEMES.includes(stored) ? stored : '');
byId('theme').addEventListener('click', () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || '') + 1) % THEMES.length]);
});
byId('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  token = byId('token').value;
  byId('token').value = '';
  start();
});
byId('ask').addEventListener('submit', submit);
byId('question').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
});
start();
