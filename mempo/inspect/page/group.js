// All samples of a task in one epoch: rounds down, samples across.

function sampleCell(round, data) {
  if (!round) return node('td', null);
  const numbers = round.memory_reward === null ? null
    : node('div', { class: 'soft' }, `P full ${decimal(round.p_full)}, P mem ${decimal(round.p_mem)}, `,
      node('span', { class: signClass(round.memory_reward) }, signed(round.memory_reward)),
      round.memory_advantage === null ? null : `, A ${signed(round.memory_advantage, 2)}`);
  const memory = round.spans.find(([kind]) => kind === 'memory');
  const rest = round.spans.filter(([kind, text]) => kind !== 'memory' && text.trim());
  return node('td', null, numbers,
    round.facts.length ? node('div', null, round.facts.map(factMark)) : null,
    memory ? node('div', null, said(memory[1], 'span', shading(memory[2]))) : null,
    round.number > 1 && round.difference && round.difference.some(([change]) => change !== 'same')
      ? node('details', null, node('summary', { class: 'soft' }, 'difference'), differenceView(round.difference)) : null,
    rest.map(([, text, advantage]) => node('div', null, said(text, 'span', shading(advantage)))),
    round.rules.length ? node('div', { class: 'chips' }, chip(`broken rules ${round.rules.join(', ')}`, 'bad')) : null,
    observationView(round, data));
}

function groupView(members, chosen, data, actions) {
  const first = data.trajectories[members[0]];
  const task = data.tasks[first.task];
  const trajectories = members.map((index) => data.trajectories[index]);
  const rounds = Math.max(...trajectories.map((one) => one.rounds.length));
  const missing = first.group_size - members.length;
  const mark = (cell, index) => { if (index === chosen) cell.classList.add('chosen'); return cell; };
  const head = trajectories.map((one, position) => mark(node('th', { scope: 'col', 'data-sample': members[position] },
    node('button', { type: 'button', onclick: () => actions.open(members[position]) }, `sample ${one.sample}`),
    node('div', null, `reward ${decimal(one.reward, 2)}, A ${signed(one.outcome, 2)}`),
    node('div', null, 'memory ', node('span', { class: signClass(one.memory) }, signed(one.memory)),
      task.facts.length ? `, facts ${one.held}/${task.facts.length}` : '',
      one.lost.length ? node('span', { class: 'minus' }, `, lost in r${one.lost.join(' r')}`) : null),
    node('div', { class: 'soft' }, said(one.ending ?? '–'), ': ', said(one.answer ?? 'no answer'))), members[position]));
  const rows = Array.from({ length: rounds }, (_, index) => node('tr', null,
    node('th', { scope: 'row' }, `round ${index + 1}`),
    trajectories.map((one, position) => mark(sampleCell(one.rounds[index], data), members[position]))));
  return [
    node('div', { class: 'title' }, said(task.id, 'h2'),
      node('span', { class: 'soft' }, `epoch ${first.epoch}, ${members.length} samples`)),
    missing ? node('p', { class: 'note' }, `${missing} of ${first.group_size} samples are left out of this page.`) : null,
    ...questionList(task),
    task.facts.length ? node('p', null, node('span', { class: 'soft' }, 'facts, in this order: '),
      task.facts.map((fact, index) => [index ? '; ' : '', factWords(fact, task.golds.length)])) : null,
    node('table', { class: 'samples' }, node('thead', null, node('tr', null, node('th', null), head)),
      node('tbody', null, rows)),
  ].filter(Boolean);
}
