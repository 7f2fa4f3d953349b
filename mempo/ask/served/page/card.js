// One question: its rounds as they come, and how it ended.

function chip(text, kind = '') {
  return node('span', { class: `chip ${kind}` }, text);
}

function labelled(name, ...content) {
  return node('div', null, node('span', { class: 'label' }, name), ...content);
}

function memoryView(round) {
  if (round.difference === null) {
    return round.number > 1 ? labelled('memory', node('span', { class: 'soft' }, 'none was written')) : null;
  }
  const tags = { same: 'span', added: 'ins', removed: 'del' };
  // The first memory is new as a whole: nothing to mark.
  const pieces = round.difference.map(([change, text]) => said(text, round.first ? 'span' : tags[change]));
  return labelled('memory', node('div', { class: 'memory' }, pieces));
}

function words(round, change) {
  return (round.difference || []).filter(([kind]) => kind === change)
    .reduce((sum, [, text]) => sum + text.trim().split(/\s+/u).length, 0);
}

function roundSide(round) {
  if (round.difference === null) return null;
  const added = words(round, 'added');
  const removed = words(round, 'removed');
  return node('dl', null,
    node('dt', null, 'memory'), node('dd', null, `${round.memory_tokens} tokens`),
    round.first ? null : [
      node('dt', null, 'new'), node('dd', { class: added ? 'plus' : '' }, `${added} words`),
      node('dt', null, 'gone'), node('dd', { class: removed ? 'minus' : '' }, `${removed} words`),
    ]);
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
    this.chips = node('span', { class: 'chips-line' });
    this.stop = node('button', { type: 'button', class: 'stop', onclick: (event) => { event.preventDefault(); onStop(); } }, 'Stop');
    this.list = node('div', { class: 'rounds' });
    this.waiting = node('p', { class: 'waiting', role: 'status' }, 'waiting for its turn');
    this.element = node('details', { class: 'card', open: true },
      node('summary', null, said(question, 'span', { class: 'asked' }), chip(context), this.chips, this.stop),
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
