// Rows to sort and filter. No document here.

// The memory as the model wrote it; null where there is none.
function memoryText(round) {
  if (round.difference === null) return null;
  return round.difference.filter(([change]) => change !== 'removed').map(([, text]) => text).join('');
}

function rowOf(trajectory, task, index) {
  let text = null;
  const facts = task.facts.length;
  return {
    index,
    epoch: trajectory.epoch,
    task: task.id,
    sample: trajectory.sample,
    reward: trajectory.reward,
    memory: trajectory.memory,
    outcome: trajectory.outcome,
    ending: trajectory.ending,
    rounds: trajectory.rounds.length,
    held: facts ? trajectory.held / facts : null,
    lost: facts ? trajectory.lost.length : null,
    tokens: trajectory.tokens,
    // What is searched; made when it is asked for, since a page may hold millions of words.
    get text() {
      const memories = () => trajectory.rounds.map((round) => memoryText(round) ?? '');
      text ??= [task.id, task.question, trajectory.answer ?? '', ...memories()].join('\n').toLowerCase();
      return text;
    },
  };
}

// An empty field asks for nothing; a number may be written with a comma or a minus sign.
function asNumber(text) {
  const plain = String(text ?? '').trim().replace('−', '-').replace(',', '.');
  return plain === '' ? null : Number(plain);
}

function between(value, from, to) {
  const least = asNumber(from);
  const most = asNumber(to);
  if (least === null && most === null) return true;
  if (value === null) return false;
  return !(least !== null && value < least) && !(most !== null && value > most);
}

function matches(row, filter) {
  const words = (filter.text || '').toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => row.text.includes(word))
    && between(row.epoch, filter.epochFrom, filter.epochTo)
    && between(row.reward, filter.rewardFrom, filter.rewardTo)
    && between(row.memory, filter.memoryFrom, filter.memoryTo)
    && (!filter.ending || row.ending === filter.ending)
    && (!filter.lost || row.lost > 0);
}

// What was never computed comes last in both directions; ties stay in the file's order.
function sorted(rows, key, descending) {
  const collator = new Intl.Collator('en', { numeric: true });
  const order = (a, b) => (typeof a === 'number' ? a - b : collator.compare(a, b));
  return [...rows].sort((left, right) => {
    const a = left[key];
    const b = right[key];
    if (a === null || b === null) return (a === null) - (b === null) || left.index - right.index;
    return (descending ? order(b, a) : order(a, b)) || left.index - right.index;
  });
}

// What all names have in front, up to a word's end: it says nothing in a narrow column.
function commonStart(names) {
  if (names.length < 2) return '';
  const [first, last] = names.reduce(([a, b], name) => [name < a ? name : a, name > b ? name : b], [names[0], names[0]]);
  let length = 0;
  while (length < first.length && first[length] === last[length]) length += 1;
  return first.slice(0, length).replace(/[^-_/.: ]*$/, '');
}
