// One question: its rounds as they come, and how it ended.

function chip(text, kind = '') {
  return node('span', { class: `chip ${kind}` }, text);
}

function labelled(name, ...content) {
  return node('div', null, node('span', { class: 'label' }, name), ...content);
}

function memoryView(round) {
  if (round.difference === null) {
    return round.missed ? labelled('memory', node('span', { class: 'soft' }, 'none was written')) : null;
  }
  const tags = { same: 'span', added: 'ins', removed: 'del' };
  // The first memory is new as a whole: nothing to mark. The space behind a mark carries none.
  const pieces = round.difference.map(([change, text]) => [
    said(text.trimEnd(), round.first ? 'span' : tags[change]), text.slice(text.trimEnd().length) || ' ',
  ]);
  return labelled('memory', node('div', { class: 'memory' }, pieces));
}

function words(round, change) {
  return (round.difference || []).filter(([kind]) => kind === change)
    .reduce((sum, [, text]) => sum + text.trim().split(/\s+/u).length, 0);
}

function roundSide(round) {
  if (round.difference === null) return null;
  const rows = [['memory tokens', round.memory_tokens, '']];
  if (!round.first) {
    rows.push(['words added', words(round, 'added'), 'plus'], ['removed', words(round, 'removed'), 'minus']);
  }
  return node('dl', null, rows.map(([label, value, kind]) => [
    node('dt', null, label), node('dd', { class: value ? kind : '' }, String(value)),
  ]));
}

function roundView(round) {
  return node('section', { class: 'round', 'aria-label': `Round ${round.number}` },
    node('div', { class: 'side' }, node('h3', null, `Round ${round.number}`), roundSide(round)),
    node('div', { class: 'body' },
      memoryView(round),
      round.thought === null ? null : labelled('thought', said(round.thought.trim(), 'div')),
      round.action === null || round.action === 'answer' ? null
        : labelled(round.action, said(round.argument, 'b')),
      round.wrote === null ? null : labelled('wrote, without an action', said(round.wrote, 'div', { class: 'wrote' })),
      round.observation === null ? null
        : labelled(round.failed ? 'result (the call failed)' : 'result',
          said(round.observation.trim(), 'div', { class: `observation${round.failed ? ' failed' : ''}`, tabindex: '0' }))));
}

class Card {
  constructor(question, context, onStop) {
    this.started = performance.now();
    this.rounds = 0;
    this.chips = node('span', { class: 'chips-line' }, chip(`sees ${context}`), ' ');
    this.answer = said('', 'span', { class: 'short' });
    this.stop = node('button', { type: 'button', class: 'stop', onclick: (event) => { event.preventDefault(); onStop(); } }, 'Stop');
    this.list = node('div', { class: 'rounds' });
    this.waiting = node('p', { class: 'waiting', role: 'status' }, 'waiting for its turn');
    this.element = node('details', { class: 'card', open: true },
      node('summary', null, said(question, 'span', { class: 'asked' }), this.chips, this.stop, this.answer),
      this.list, this.waiting);
  }

  take(event) {
    if (event.event === 'accepted') this.waiting.textContent = 'round 1';
    else if (event.event === 'round') {
      this.rounds = event.number;
      this.list.append(roundView(event));
      this.waiting.textContent = `round ${event.number + 1}`;
    } else if (event.event === 'ended') {
      this.end(event.answered ? 'good' : 'bad', event.ending.replaceAll('_', ' '),
        node('span', { class: 'label' }, event.answered ? 'answer' : 'no answer'),
        said(event.text || '', 'div', { class: event.answered ? 'answer' : 'reason' }),
        node('p', { class: 'soft used' }, event.used));
      if (event.answered) this.answer.append(said(event.text || ''));
      this.chips.append(chip(`${event.tokens.toLocaleString('en')} tokens`));
    } else if (event.event === 'failed') this.fail(event.message);
  }

  fail(message) {
    this.end('bad', 'failed', node('span', { class: 'label' }, 'failed'), said(message, 'div', { class: 'failed', role: 'alert' }));
  }

  end(kind, name, ...content) {
    const seconds = (performance.now() - this.started) / 1000;
    this.waiting.remove();
    this.stop.remove();
    this.list.append(node('div', { class: 'ending' }, content));
    this.chips.append(chip(name, kind), ' ', chip(`${seconds.toFixed(1)} s`), ' ');
  }
}
