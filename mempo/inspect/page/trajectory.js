// One trajectory as a chain of rounds.

const RULES = {
  1: 'a tag does not close',
  2: 'not exactly one action',
  3: 'not exactly one thought before the action',
  4: 'the action has no argument',
  5: 'text outside tags',
  6: 'wrote <information> itself',
  8: 'does not begin with one memory',
};
const FACT_STATES = { h: 'held', s: 'spent', l: 'lost', t: 'told', u: 'unseen' };
const FACT_MARKS = { held: '●', spent: '◌', lost: '✕', told: '○', unseen: '·' };
const FACT_WORDS = {
  held: 'the memory says it',
  spent: 'dropped, and a later fact of its chain makes up for it',
  lost: 'lost',
  told: 'told by a tool, never written down',
  unseen: 'not seen yet',
};
const KIND_WORDS = { memory: 'memory', thought: 'thought', action: 'action', other: 'outside tags' };

function chip(text, kind = '') {
  return node('span', { class: `chip ${kind}` }, text);
}

// A code: the state's letter, + where only the object is named, ! where this round lost the fact.
function factMark(code) {
  const state = FACT_STATES[code[0]];
  const named = code.includes('+');
  const lostHere = code.includes('!');
  const words = lostHere ? 'lost in this round' : FACT_WORDS[state];
  return node('span', {
    class: `fact ${state}${lostHere ? ' first' : ''}${named ? ' named' : ''}`,
    title: named ? `${words}; the memory names the object` : words,
  }, FACT_MARKS[state]);
}

function factWords(fact, objectives) {
  return [
    objectives > 1 ? node('span', { class: 'soft' }, `${fact.objective} · `) : null,
    said(fact.subject), node('span', { class: 'soft' }, ` ${fact.noun} `), said(fact.object),
  ];
}

function questionList(task, answer) {
  const golds = task.golds.map((aliases) => aliases.join(' / ')).join('; ');
  return [
    said(task.question, 'p'),
    node('p', null, node('span', { class: 'soft' }, 'gold '), said(golds)),
    answer === undefined ? null : node('p', null, node('span', { class: 'soft' }, 'answer '),
      answer === null ? node('span', { class: 'soft' }, 'none') : said(answer)),
  ];
}

// Rounds across, facts and numbers down: where knowledge came and where it went.
function chainTable(trajectory, task, onRound) {
  const objectives = task.golds.length;
  const numbers = [
    ['P full', 'p_full', (v) => decimal(v, 3)],
    ['P mem', 'p_mem', (v) => decimal(v, 3)],
    ['memory reward', 'memory_reward', (v) => node('span', { class: signClass(v) }, signed(v))],
    ['memory advantage', 'memory_advantage', (v) => node('span', { class: signClass(v) }, signed(v, 2))],
    ['memory tokens', 'memory_tokens', (v) => String(v)],
  ];
  return node('div', { class: 'scroll' }, node('table', { class: 'chain' },
    node('thead', null, node('tr', null, node('th', null, task.facts.length ? 'fact, by round' : 'by round'),
      trajectory.rounds.map((round) => node('th', { scope: 'col' },
        node('button', { type: 'button', onclick: () => onRound(round.number) }, String(round.number)))))),
    node('tbody', null,
      task.facts.map((fact, index) => node('tr', null,
        node('th', { scope: 'row' }, factWords(fact, objectives)),
        trajectory.rounds.map((round) => node('td', null, factMark(round.facts[index]))))),
      numbers.map(([label, key, shown]) => node('tr', null,
        node('th', { scope: 'row', class: 'soft' }, label),
        trajectory.rounds.map((round) => node('td', null, shown(round[key]))))))));
}

function differenceView(difference) {
  const tags = { same: 'span', added: 'ins', removed: 'del' };
  return node('div', { class: 'text', dir: 'auto' }, difference.map(([change, text]) => said(text, tags[change])));
}

function observationView(round, data) {
  if (round.observation === null) return null;
  const left = round.cut ? node('p', { class: 'soft' }, `${round.cut} more characters stand in trajectories.jsonl`) : null;
  return node('div', null, node('span', { class: 'label' }, round.failed ? 'observation: the tool failed' : 'observation'),
    node('div', { class: `observation${round.failed ? ' failed' : ''}`, tabindex: 0 },
      said(data.observations[round.observation], 'div'), left));
}

function roundSide(round) {
  const meter = (value, kind) => (value === null ? null
    : node('div', { class: 'meter' }, node('i', { class: kind, width: `${(100 * value).toFixed(1)}%` })));
  const rows = [];
  const add = (label, value) => rows.push(node('dt', null, label), node('dd', null, value));
  if (round.p_full !== null) { add('P full', decimal(round.p_full)); rows.push(meter(round.p_full, 'full')); }
  if (round.p_mem !== null) { add('P mem', decimal(round.p_mem)); rows.push(meter(round.p_mem, 'mem')); }
  if (round.memory_reward !== null) add('reward', node('span', { class: signClass(round.memory_reward) }, signed(round.memory_reward)));
  if (round.memory_advantage !== null) add('advantage', node('span', { class: signClass(round.memory_advantage) }, signed(round.memory_advantage, 2)));
  if (round.difference !== null && round.final !== null) add('final', signed(round.final, 2));
  if (round.memory_tokens) add('tokens', String(round.memory_tokens));
  return node('div', { class: 'side' }, node('h3', null, `Round ${round.number}`), node('dl', null, rows));
}

function roundView(round, data, withoutMemory) {
  const body = node('div', { class: 'body' });
  const spans = round.spans.filter(([kind, text]) => kind !== 'other' || text.trim());
  for (const [kind, text, advantage] of spans) {
    const label = kind === 'action' && round.action ? round.action : KIND_WORDS[kind];
    body.append(node('div', null,
      node('span', { class: 'label' }, `${label}${advantage === null ? '' : ` · ${signed(advantage, 2)}`}`),
      said(text, 'span', shading(advantage))));
    if (kind === 'memory' && round.difference && round.number > 1) {
      body.append(node('div', null, node('span', { class: 'label' }, 'against the memory before'),
        round.difference.length ? differenceView(round.difference) : node('span', { class: 'soft' }, 'both are empty')));
    }
  }
  if (round.difference === null && round.number > 1 && !withoutMemory) {
    body.append(node('p', { class: 'soft' }, 'No memory was written: with the memory context nothing would be carried over.'));
  }
  const broken = round.rules.map((rule) => chip(`rule ${rule}: ${RULES[rule] || 'broken'}`, 'bad'));
  if (broken.length) body.append(node('div', { class: 'chips' }, broken));
  const observation = observationView(round, data);
  if (observation) body.append(observation);
  return node('section', { class: 'round', id: `round-${round.number}`, 'aria-label': `Round ${round.number}`, tabindex: -1 },
    roundSide(round), body);
}

function trajectoryView(trajectory, data, actions) {
  const task = data.tasks[trajectory.task];
  const metrics = Object.entries(trajectory.metrics).filter(([key]) => ['exact_match', 'f1'].includes(key));
  return [
    node('div', { class: 'title' }, said(task.id, 'h2'),
      node('span', { class: 'soft' }, `epoch ${trajectory.epoch}, sample ${trajectory.sample}, line ${trajectory.line}`),
      node('button', { type: 'button', onclick: actions.group }, `All samples (${trajectory.group_size})`)),
    questionList(task, trajectory.answer),
    node('div', { class: 'chips' },
      chip(`reward ${decimal(trajectory.reward, 2)}`, trajectory.reward > 0 ? 'good' : ''),
      metrics.map(([key, value]) => chip(`${key.replace('_', ' ')} ${decimal(value, 2)}`)),
      chip(`outcome advantage ${signed(trajectory.outcome, 2)}`),
      chip(`memory reward ${signed(trajectory.memory)}`),
      node('span', { class: `chip ${trajectory.ending === 'answered' ? '' : 'bad'}` }, said(trajectory.ending ?? 'no ending')),
      trajectory.valid === false ? chip('format broken', 'bad') : null,
      chip(`${trajectory.tokens} tokens, ${trajectory.policy} policy, peak ${trajectory.peak}`),
      chip(`${trajectory.calls} tool calls, ${trajectory.failures} failed`, trajectory.errors ? 'bad' : '')),
    chainTable(trajectory, task, actions.round),
    node('p', { class: 'soft' }, 'Shaded by final advantage, by span: outcome advantage on all policy text, plus ',
      `${data.weight} × memory advantage on the memory.`),
    trajectory.rounds.map((round) => roundView(round, data, trajectory.without_memory)),
  ].flat();
}
