// Nodes. Texts become text nodes, never markup.

// Characters that are not seen or that turn the direction of what follows: shown by their number.
// U+200D (joins emoji), line breaks and tabs stay as they are.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/u;
const HIDDEN_SPLIT = new RegExp(`(${HIDDEN.source})`, 'u');

// node('p', {class: 'x', onclick: f}, 'text', child, [more], null)
function node(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (key === 'much') made.style.setProperty('--much', value);
    else if (key === 'width') made.style.width = value;
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return made;
}

// The text of a model or a tool: in its own direction, hidden characters made visible.
function said(text, name = 'span', attributes = {}) {
  const made = node(name, { dir: 'auto', ...attributes, class: `text ${attributes.class || ''}`.trim() });
  for (const part of String(text).split(HIDDEN_SPLIT)) {
    if (part && HIDDEN.test(part)) {
      const code = part.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
      made.append(node('span', { class: 'control', title: 'a character that is not seen' }, `U+${code}`));
    } else if (part) made.append(part);
  }
  return made;
}

function decimal(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  return value.toFixed(digits).replace('-', '−');
}

function signed(value, digits = 3) {
  return value > 0 ? `+${decimal(value, digits)}` : decimal(value, digits);
}

function signClass(value) {
  if (value === null || Math.abs(value) < 0.0005) return '';
  return value > 0 ? 'plus' : 'minus';
}

// Full shading is reached at an advantage of 3 standard deviations.
function shading(advantage) {
  if (advantage === null || Math.abs(advantage) < 0.005) return { class: 'shade' };
  const much = 8 + 52 * Math.min(1, Math.abs(advantage) / 3);
  return { class: `shade ${advantage > 0 ? 'up' : 'down'}`, much: `${much.toFixed(0)}%` };
}
