// Completion of a list's search, the palette that finds everything, and keyboard shortcuts.
// Without scripts the search is typed in full, and /find shows the palette's results.

const make = (name, props = {}, ...children) => {
  const element = Object.assign(document.createElement(name), props);
  element.append(...children);
  return element;
};

// ---- a text field with a list of completions

// combo shows completions, which ask returns for the typed text; choose gets the chosen one.
function combo(input, list, { ask, show, choose, eager }) {
  let offers = [], active = -1, timer, asked = 0, quiet = false;
  const attributes = { role: 'combobox', 'aria-autocomplete': 'list', 'aria-expanded': 'false', 'aria-controls': list.id };
  for (const [name, value] of Object.entries(attributes)) input.setAttribute(name, value);

  const mark = (i) => {
    active = i;
    [...list.children].forEach((option, n) => option.setAttribute('aria-selected', n === i));
    if (i < 0) { input.removeAttribute('aria-activedescendant'); return; }
    input.setAttribute('aria-activedescendant', list.children[i].id);
    list.children[i].scrollIntoView({ block: 'nearest' });
  };
  const close = () => {
    clearTimeout(timer);
    asked++;
    list.hidden = true;
    input.setAttribute('aria-expanded', 'false');
    mark(-1);
  };
  const open = (found) => {
    offers = found;
    list.replaceChildren(...offers.map((offer, i) => {
      const option = make('li', { id: `${list.id}-${i}` }, ...show(offer));
      option.setAttribute('role', 'option');
      return option;
    }));
    list.hidden = !offers.length;
    input.setAttribute('aria-expanded', String(offers.length > 0));
    list.scrollTop = 0;
    mark(eager && offers.length ? 0 : -1);
  };
  const look = async () => {
    const mine = ++asked;
    let found;
    try { found = await ask(input.value.slice(0, input.selectionStart ?? undefined)); } catch { return; }
    if (mine === asked && document.activeElement === input) open(found);
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(look, 120); };
  const take = (i) => {
    const offer = offers[i];
    close();
    quiet = true;
    choose(offer);
    quiet = false;
    if (offer.more) look();
  };

  input.addEventListener('input', () => { if (!quiet) soon(); });
  input.addEventListener('focus', () => { if (!input.value) soon(); });
  input.addEventListener('blur', close);
  list.addEventListener('mousedown', (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener('click', (event) => {
    const option = event.target.closest('[role=option]');
    if (option) take([...list.children].indexOf(option));
  });
  input.addEventListener('keydown', (event) => {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = offers.length;
    switch (event.key) {
      case 'ArrowDown': case 'ArrowUp':
        event.preventDefault();
        if (list.hidden) look(); else mark(event.key === 'ArrowDown' ? (active + 1) % n : (active <= 0 ? n : active) - 1);
        return;
      case 'Enter':
        if (list.hidden || active < 0) { close(); return; }
        event.preventDefault();
        take(active);
        return;
      case 'Escape':
        if (list.hidden || eager) return; // Escape then closes the dialog
        event.preventDefault();
        event.stopPropagation();
        close();
    }
  });
  return { look, close };
}

async function json(url) {
  const answer = await fetch(url, { headers: { Accept: 'application/json' } });
  if (!answer.ok || !answer.headers.get('Content-Type').startsWith('application/json')) throw new Error(answer.status);
  return answer.json();
}

for (const input of document.querySelectorAll('input[data-complete]')) {
  let head = '';
  combo(input, document.getElementById('completions'), {
    async ask(text) {
      const found = await json(`/find/complete?${new URLSearchParams({ list: input.dataset.complete, text })}`);
      head = found.head;
      return found.offers;
    },
    show: ({ text, say }) => say ? [make('b', { textContent: text }), ' ', make('small', { textContent: say })] : [make('b', { textContent: text })],
    choose({ text, more }) {
      const rest = input.value.slice(input.selectionStart ?? input.value.length);
      const value = head + text + (more ? '' : ' ');
      input.value = value + rest.trimStart();
      input.setSelectionRange(value.length, value.length);
      if (!more) input.dispatchEvent(new Event('input', { bubbles: true })); // update the list
    },
  });
}

// ---- dialogs

function dialogOf(label, ...children) {
  const dialog = make('dialog', { className: 'over-all' }, ...children);
  dialog.setAttribute('aria-label', label);
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); }); // a click outside
  document.body.append(dialog);
  return dialog;
}

const hint = 'Nodes, sites, pods, workloads, config maps, volumes, incidents, the manual; or “drain” and a node’s name.';

let palette;
function openPalette() {
  if (document.querySelector('dialog[open]')) return;
  if (!palette) {
    const input = make('input', { type: 'text', inputMode: 'search', name: 'q', placeholder: 'A name, or what you want to do', maxLength: 100, autocomplete: 'off', autocapitalize: 'none', spellcheck: false });
    input.setAttribute('aria-label', 'Find anything'); // type search would take the Escape that closes the dialog
    let chosen = false;
    const list = make('ul', { id: 'found', hidden: true }), none = make('p', { className: 'empty' });
    list.setAttribute('role', 'listbox');
    list.setAttribute('aria-label', 'Found');
    none.setAttribute('role', 'status');
    const help = make('button', { type: 'button', className: 'quiet', textContent: 'Keys' });
    const shut = make('button', { type: 'button', className: 'quiet', textContent: 'Close' });
    const form = make('form', { action: '/find', method: 'get' }, input, list, none, make('p', { className: 'row' }, help, shut));
    form.setAttribute('role', 'search');
    form.addEventListener('submit', (event) => { if (chosen) event.preventDefault(); }); // another page is loading
    form.addEventListener('input', () => { chosen = false; });
    palette = dialogOf('Find', form);
    palette.input = input;
    palette.clear = () => { close(); input.value = ''; none.textContent = hint; };
    shut.addEventListener('click', () => palette.close());
    help.addEventListener('click', () => { palette.close(); openKeys(); });
    const { close } = combo(input, list, {
      eager: true,
      async ask() {
        const q = input.value.trim();
        const found = q ? await json(`/find?${new URLSearchParams({ q })}`) : [];
        none.textContent = !q ? hint : found.length ? '' : 'Nothing is like that.';
        return found;
      },
      show: ({ kind, name, where }) => [make('small', { textContent: kind }), ' ', make('b', { textContent: name }), ...(where ? [' ', make('small', { textContent: where })] : [])],
      choose({ href }) { chosen = true; palette.close(); location.assign(href); },
    });
  }
  palette.clear(); // before it opens: later results would move the buttons under a finger
  palette.showModal();
  palette.input.focus();
  palette.input.dispatchEvent(new Event('input'));
}

// ---- shortcuts, which can be switched off in this browser, because speech input presses them too

const off = () => localStorage.getItem('keys') === 'off';

const keys = [
  ['/', 'Search this list'], ['j k', 'Next and previous row'], ['o', 'Open the row'], ['x', 'Tick the row, or not'],
  ['g n', 'Nodes; o overview, s sites, w workloads, p pods, e events, h manual'], ['Ctrl+K', 'Find anything; ⌘K on a Mac'], ['?', 'This list'],
];

let keyList;
function openKeys() {
  if (document.querySelector('dialog[open]')) return;
  if (!keyList) {
    const list = make('dl', {}, ...keys.map(([key, does]) => make('div', {}, make('dt', {}, make('kbd', { textContent: key })), make('dd', { textContent: does }))));
    const box = make('input', { type: 'checkbox', id: 'keys-on' });
    box.addEventListener('change', () => localStorage.setItem('keys', box.checked ? 'on' : 'off'));
    const shut = make('button', { type: 'button', textContent: 'Close', autofocus: true });
    shut.addEventListener('click', () => keyList.close());
    const more = make('a', { href: '/help/finding', textContent: 'More in the manual' });
    keyList = dialogOf('Keys', make('h2', { textContent: 'Keys' }), list,
      make('label', { className: 'tick' }, box, make('span', { textContent: ' Keys of one letter work in this browser; Ctrl+K always does' })), make('p', { className: 'row' }, shut, more));
    keyList.box = box;
  }
  keyList.box.checked = !off();
  keyList.showModal();
}

const rows = () => [...document.querySelectorAll('main .rows tbody tr:not(.reason), main .cards > li, main .incidents > li, main .finds > li')].filter((row) => linkOf(row) && row.offsetParent);
const linkOf = (row) => row.querySelector('th a[href], h2 a[href], h3 a[href]') || row.querySelector('a[href]');
const current = () => document.activeElement?.closest('main .rows tbody tr, main .cards > li, main .incidents > li, main .finds > li');

let last = -1;
function step(by) {
  const all = rows();
  if (!all.length) return;
  const now = current(), here = now ? all.indexOf(now) : -1;
  last = Math.max(0, Math.min(all.length - 1, here >= 0 ? here + by : last < 0 ? 0 : last));
  linkOf(all[last]).focus();
  all[last].scrollIntoView({ block: 'nearest' });
}

const goes = { o: '/', n: '/nodes', s: '/sites', w: '/workloads', p: '/pods', e: '/events', h: '/help' };
let going = 0; // when g was pressed

addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === 'k') {
    if (!document.querySelector('[data-find]')) return;
    if (event.target.closest?.('.xterm')) return; // keys for a shell
    event.preventDefault();
    if (palette?.open) palette.close(); else openPalette();
    return;
  }
  if (off() || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest?.('input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]')) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    if (goes[event.key]) { event.preventDefault(); location.assign(goes[event.key]); }
    return;
  }
  going = 0;
  switch (event.key) {
    case '/': {
      const field = document.querySelector('main input[type=search]');
      if (!field) return;
      event.preventDefault();
      field.focus();
      field.select();
      return;
    }
    case 'j': step(1); return;
    case 'k': step(-1); return;
    case 'o': { const row = current(); if (row) linkOf(row)?.click(); return; }
    case 'x': current()?.querySelector('input[type=checkbox][name=pick]')?.click(); return;
    case 'g': going = Date.now(); return;
    case '?': event.preventDefault(); openKeys();
  }
});

addEventListener('click', (event) => {
  if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || !event.target.closest?.('[data-find]')) return;
  event.preventDefault();
  openPalette();
});

// ---- saved views: the present search, not the one when the page was loaded

for (const form of document.querySelectorAll('form[data-here]')) {
  form.addEventListener('submit', () => { form.elements.href.value = location.pathname + location.search; });
}
