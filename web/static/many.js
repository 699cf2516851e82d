// Check boxes in a list's rows: ticks stay while the list is updated, sorted and paged, and go with
// the form of an action. Without scripts the boxes of this page are an ordinary form.

const store = `picked ${location.pathname}`;
const form = document.getElementById('act');
const bar = () => document.getElementById('picks');
const boxes = (within = document) => [...within.querySelectorAll('input[name=pick]')];
const seen = (within) => boxes(within).filter((box) => box.offsetParent); // a phone shows only the first rows
const everything = () => document.querySelector('input[name=all]');
const kindOf = (pick) => pick.slice(0, pick.indexOf('/'));

let picked = new Set();
let last = ''; // the box that was ticked last
let shift = false;

function load() {
  try { picked = new Set(JSON.parse(sessionStorage.getItem(store) || '[]')); } catch { picked = new Set(); }
}

function keep() {
  try {
    if (picked.size) sessionStorage.setItem(store, JSON.stringify([...picked])); else sessionStorage.removeItem(store);
  } catch { /* no room: they last as long as the page */ }
}

function set(element, name, value) {
  if (element[name] !== value) element[name] = value;
}

// show sets the ticks and their number.
function show() {
  const rows = boxes();
  for (const box of rows) set(box, 'checked', picked.has(box.value));
  for (const all of document.querySelectorAll('input[data-all]')) {
    const mine = seen(all.closest(all.dataset.all)), n = mine.filter((box) => box.checked).length;
    set(all, 'checked', n > 0 && n === mine.length);
    set(all, 'indeterminate', n > 0 && n < mine.length);
  }
  if (!bar()) return;
  const here = rows.filter((box) => box.checked).length, away = picked.size - here, all = everything();
  let text = `${picked.size} selected`;
  if (away > 0) text += `, ${away} not on this page`;
  if (all?.checked) text = `All ${document.querySelector('[data-total]').textContent} that match`;
  set(bar().querySelector('output'), 'textContent', text);
  const some = picked.size > 0 || !!all?.checked;
  if (bar().classList.contains('some') !== some) bar().classList.toggle('some', some);
  const kinds = all?.checked ? [all.value] : [...new Set([...picked].map(kindOf))];
  for (const button of bar().querySelectorAll('[data-kinds]')) {
    const has = button.dataset.kinds.split(' ');
    set(button, 'hidden', !kinds.every((kind) => has.includes(kind)));
  }
}

function pick(value, is) {
  if (is) picked.add(value); else picked.delete(value);
}

addEventListener('pointerdown', (event) => { shift = event.shiftKey; }, true);
addEventListener('keydown', (event) => { shift = event.shiftKey; }, true);

addEventListener('change', (event) => {
  const box = event.target;
  if (box.name === 'pick') {
    const rows = boxes(), from = rows.findIndex((row) => row.value === last), to = rows.indexOf(box);
    const range = shift && from >= 0 ? rows.slice(Math.min(from, to), Math.max(from, to) + 1) : [box];
    for (const row of range) pick(row.value, box.checked);
    last = box.value;
  } else if (box.matches?.('input[data-all]')) {
    for (const row of seen(box.closest(box.dataset.all))) pick(row.value, box.checked);
  } else if (box.name !== 'all') {
    return;
  }
  keep();
  show();
});

// Firefox does not tick a box when its label is clicked with Shift.
addEventListener('click', (event) => {
  const label = event.shiftKey ? event.target.closest?.('label.pick') : null, box = label?.querySelector('input');
  if (!box || event.target === box) return;
  event.preventDefault();
  box.click();
});

addEventListener('click', (event) => {
  if (!event.target.closest?.('[data-none]')) return;
  picked.clear();
  if (everything()) everything().checked = false;
  keep();
  show();
  document.getElementById('main').focus({preventScroll: true}); // the button has disappeared
});

// Another filter clears the choice of all matches.
addEventListener('input', (event) => {
  if (event.target.closest?.('form[data-filter]') && everything()) { everything().checked = false; show(); }
});

// Ticked objects on other pages go with the form, too.
form?.addEventListener('submit', (event) => {
  for (const old of form.querySelectorAll('[data-away]')) old.remove();
  if (event.submitter?.name !== 'do') return;
  const here = new Set(boxes().map((box) => box.value)), input = document.createElement('input');
  Object.assign(input, {type: 'hidden', name: 'picks', value: [...picked].filter((value) => !here.has(value)).join(' ')});
  input.dataset.away = '';
  form.append(input);
});

if (document.querySelector('table.job')) { // the action has begun: the choice is over
  for (const name of Object.keys(sessionStorage)) if (name.startsWith('picked ')) sessionStorage.removeItem(name);
}

load();
show();
// New rows get their earlier ticks, and the bar stays.
new MutationObserver(show).observe(document.getElementById('main'), {childList: true, subtree: true, attributeFilter: ['class', 'hidden']});
addEventListener('pageshow', () => { load(); show(); });
