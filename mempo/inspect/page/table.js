// The list: only the rows in sight are in the document.

const ROW_HEIGHT = 28;
const STEP = 8;
const COLUMNS = [
  // key, label, class, width (the task takes what is left)
  ['epoch', 'epoch', 'number', '58px'],
  ['task', 'task', '', ''],
  ['sample', '#', 'number', '36px'],
  ['reward', 'reward', 'number', '62px'],
  ['memory', 'mem. reward', 'number', '112px'],
  ['ending', 'ending', '', '92px'],
  ['rounds', 'rounds', 'number', '58px'],
  ['held', 'facts', 'number', '50px'],
  ['lost', 'lost', 'number', '54px'],
];
const COLUMN_TITLES = {
  sample: 'sample of the task',
  memory: 'mean memory reward of the scored rounds',
  held: 'facts that the last memory holds or no longer needs, of those that the task needs',
  lost: 'rounds whose memory lost a fact that is still needed',
};

function makeTable(place, data, onSelect, onSort) {
  const start = commonStart(data.tasks.map((task) => task.id));
  const head = node('tr', { role: 'row' });
  const body = node('tbody');
  const empty = node('p', { class: 'empty', hidden: true });
  const widths = COLUMNS.map(([, , , width]) => node('col', { width: width || null }));
  const table = node('table', { role: 'presentation' }, node('colgroup', null, widths), node('thead', null, head), body);
  place.append(table, empty);
  let rows = [];
  let selected = null;
  let drawn = 0;

  function cell(row, key) {
    const trajectory = data.trajectories[row.index];
    if (key === 'task') return said(row.task.slice(start.length), 'span', { title: row.task });
    if (key === 'reward') return decimal(row.reward, 2);
    if (key === 'memory') return node('span', { class: signClass(row.memory) }, signed(row.memory));
    if (key === 'ending') return said(row.ending ?? '–');
    if (key === 'held') return row.held === null ? '' : `${trajectory.held}/${data.tasks[trajectory.task].facts.length}`;
    if (key === 'lost') {
      const rounds = `r${trajectory.lost.join(' r')}`;
      return row.lost ? node('span', { class: 'minus text', title: rounds }, rounds) : '';
    }
    return String(row[key]);
  }

  // The first row to draw moves in steps, so that most scrolling draws nothing.
  function firstRow() {
    return Math.max(0, STEP * (Math.floor(place.scrollTop / ROW_HEIGHT / STEP) - 1));
  }

  function draw() {
    const top = firstRow();
    drawn = top;
    const bottom = Math.min(rows.length, top + Math.ceil(place.clientHeight / ROW_HEIGHT) + 3 * STEP);
    const gap = (count) => node('tr', { class: 'gap', 'aria-hidden': 'true' },
      Object.assign(node('td', { colspan: COLUMNS.length }), { style: `height:${count * ROW_HEIGHT}px` }));
    const made = rows.slice(top, bottom).map((row, offset) => node('tr', {
      role: 'row',
      id: `row-${row.index}`,
      'aria-rowindex': top + offset + 2,
      'aria-selected': row.index === selected ? 'true' : 'false',
      onclick: () => onSelect(row.index),
    }, COLUMNS.map(([key, , kind]) => node('td', { role: 'gridcell', class: kind }, cell(row, key)))));
    body.replaceChildren(gap(top), ...made, gap(rows.length - bottom));
  }

  function drawHead(key, descending) {
    head.replaceChildren(...COLUMNS.map(([name, label, kind]) => node('th', {
      role: 'columnheader',
      class: kind,
      title: COLUMN_TITLES[name],
      'aria-sort': name === key ? (descending ? 'descending' : 'ascending') : 'none',
    }, node('button', { type: 'button', onclick: () => onSort(name) },
      label, name === key ? (descending ? ' ▾' : ' ▴') : ''))));
  }

  let waiting = false;
  place.addEventListener('scroll', () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (firstRow() !== drawn) draw();
    });
  });
  new ResizeObserver(draw).observe(place);

  return {
    show(newRows, key, descending, message) {
      rows = newRows;
      place.setAttribute('aria-rowcount', rows.length + 1);
      empty.textContent = message;
      empty.hidden = rows.length > 0;
      drawHead(key, descending);
      draw();
    },
    select(index) {
      selected = index;
      const position = rows.findIndex((row) => row.index === index);
      if (position >= 0) {
        place.setAttribute('aria-activedescendant', `row-${index}`);
        const above = position * ROW_HEIGHT;
        const room = place.clientHeight - 2 * ROW_HEIGHT;
        if (above < place.scrollTop) place.scrollTop = above;
        else if (room > 0 && above > place.scrollTop + room) place.scrollTop = above - room;
      }
      draw();
    },
  };
}
