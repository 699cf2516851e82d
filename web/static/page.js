// Live updates: the hub sends the page's main part again, and the script changes what differs.
// Without scripts everything is still readable.

const root = document.querySelector('[data-live]');
const clock = document.getElementById('main');
let offset = Date.parse(clock.dataset.now) - Date.now(); // the hub's clock minus ours, in ms
let known = new Date(); // when the shown state was last confirmed

// ---- times

function human(ms) { // as kubectl writes durations
  const s = Math.max(0, Math.floor(ms / 1000)), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  const two = (a, unit, b, small) => b ? `${a}${unit}${b}${small}` : `${a}${unit}`;
  if (s < 120) return `${s}s`;
  if (m < 10) return two(m, 'm', s % 60, 's');
  if (h < 3) return `${m}m`;
  if (h < 8) return two(h, 'h', m % 60, 'm');
  if (h < 48) return `${h}h`;
  if (d < 8) return two(d, 'd', h % 24, 'h');
  if (d < 730) return `${d}d`;
  return `${Math.floor(d / 365)}y`;
}

function tick() {
  const now = Date.now() + offset;
  for (const t of document.querySelectorAll('time[data-ago]')) set(t, human(now - Date.parse(t.dateTime)));
  for (const t of document.querySelectorAll('time[data-left]')) set(t, human(Date.parse(t.dateTime) - now));
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The tab shows how many incidents are open while another tab is in front.
function showTab() {
  const tab = document.getElementById('tab');
  if (!tab) return;
  const { open, kind } = tab.dataset, icon = document.querySelector('link[rel=icon]');
  const title = document.title.replace(/^\(\d+\) /, '');
  document.title = open > 0 ? `(${open}) ${title}` : title;
  const href = tab.dataset[kind || 'ok'];
  if (icon.getAttribute('href') !== href) icon.setAttribute('href', href);
}

// ---- changing the page in place, without losing focus, selection, scrolling and open details

const keyOf = (node) => node.nodeType === 1 ? node.id || node.dataset.key || '' : '';
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morph(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.matches('input, select, textarea, output, [data-own]')) return; // the user's own
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== 'open') from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name !== 'open' && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (!from.matches('time[data-ago], time[data-left], [data-fill]')) morphChildren(from, to); // this script writes their text
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = from.firstChild;
  for (const want of [...to.childNodes]) {
    const known = keyOf(want) ? keyed.get(keyOf(want)) : null;
    if (known && known.nodeName === want.nodeName && known.parentNode === from) {
      at = skipText(at);
      if (known !== at) from.insertBefore(known, at); else at = at.nextSibling;
      morph(known, want);
      continue;
    }
    if (want.nodeType === 1) at = skipText(at);
    if (at && alike(at, want)) {
      const next = at.nextSibling;
      morph(at, want);
      at = next;
    } else {
      from.insertBefore(document.importNode(want, true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// skipText removes text before an element: the parser drops leading space, and moving the element
// would lose its focus.
function skipText(at) {
  while (at && at.nodeType !== 1) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  return at;
}

// ---- a card with the focus, or that is pressed, stays in place: arrivals wait behind a button

let waiting = ''; // the newest page while its cards wait

const heldCard = () => root.querySelector('.incidents > li:is(:focus-within, :active)');

function show(page) {
  const body = new DOMParser().parseFromString(page, 'text/html').body;
  const card = heldCard(), top = card?.getBoundingClientRect().top;
  const text = card ? keepCards(card, body) : '';
  waiting = text && page;
  morphChildren(root, body);
  if (card) scrollBy(0, card.getBoundingClientRect().top - top);
  const news = document.getElementById('news');
  if (news && news.textContent !== text) {
    news.replaceChildren(...text ? [Object.assign(document.createElement('button'), { textContent: text, title: 'Show the list as it is now' })] : []);
  }
  tick();
  showTab();
}

// keepCards gives a new page the shown cards in their order, and returns the text of the button.
function keepCards(card, body) {
  const list = card.parentElement, next = body.querySelector('ul.incidents');
  if (!next) return '';
  const come = new Map([...next.children].map((li) => [keyOf(li), li])), shown = [...list.children].map(keyOf);
  const arrived = [...come.keys()].filter((key) => !shown.includes(key)).length;
  const same = shown.join() === [...come.keys()].join();
  next.replaceChildren(...[...list.children].map((li) => !li.matches(':active') && come.get(keyOf(li)) || li.cloneNode(true)));
  if (same) return '';
  return arrived ? `${arrived} new` : 'Show changes';
}

root?.addEventListener('click', (event) => {
  if (!waiting || !event.target.closest('#news button')) return;
  document.getElementById('cards').focus(); // the button disappears
  show(waiting);
});

// ---- the connection

const silence = 25_000; // ms without a sign of life until the connection counts as lost
let source, watchdog, losing, delay = 1000;
let shown = root ? root.dataset.live : ''; // tag of the shown content
let ours = false, stale = false; // stale: the hub has other scripts now than those of this page

function lost(is) {
  document.body.classList.toggle('is-lost', is);
  set(document.getElementById('lost'), is ? `Connection to the hub lost. This is what was known at ${new Date(+known + offset).toISOString().slice(11, 19)} UTC; trying again…` : '');
}

function alive() {
  clearTimeout(losing);
  lost(false);
  delay = 1000;
  known = new Date();
  clearTimeout(watchdog);
  watchdog = setTimeout(reconnect, silence);
  if (stale && !document.activeElement?.matches('input, select, textarea')) location.reload(); // not while somebody types
}

function disconnect() {
  if (source) source.close();
  clearTimeout(watchdog);
  clearTimeout(losing);
}

async function reconnect() {
  lost(true);
  disconnect();
  await new Promise((wake) => setTimeout(wake, delay * (0.5 + Math.random())));
  delay = Math.min(delay * 2, 15_000);
  try {
    if (!(await (await fetch('/session')).json()).in) { location.reload(); return; }
  } catch { /* not running yet */ }
  connect();
}

// connect opens the stream of updates. A hidden page waits.
function connect() {
  disconnect();
  if (document.hidden) return;
  const url = new URL(root.dataset.src || location.href, location.href);
  url.hash = '';
  url.searchParams.set('shown', shown);
  source = new EventSource(url);
  watchdog = setTimeout(reconnect, silence);
  source.addEventListener('beat', (event) => {
    offset = Date.parse(event.data) - Date.now();
    alive();
  });
  source.addEventListener('look', (event) => {
    const same = event.data === root.dataset.look;
    stale = ours && !same; // not while hubs of two versions answer in turn
    ours ||= same;
    alive();
  });
  source.addEventListener('show', (event) => {
    alive();
    shown = event.lastEventId;
    show(event.data);
  });
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) { reconnect(); return; }
    clearTimeout(losing); // the browser reconnects by itself, usually at once
    losing = setTimeout(lost, 2000, true);
  };
}

// ---- filters apply as they are typed

document.documentElement.classList.toggle('is-live', !!root); // on the root, which updates do not change

for (const form of document.querySelectorAll('form[data-filter]')) {
  let timer;
  const apply = () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ''));
    history.replaceState(null, '', query.size ? `?${query}` : location.pathname);
    connect();
  };
  form.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(apply, 200); });
  form.addEventListener('submit', (event) => { event.preventDefault(); clearTimeout(timer); apply(); });
}

// ---- actions

// A menu closes at a click elsewhere.
addEventListener('click', (event) => {
  for (const menu of document.querySelectorAll('.menu[open]')) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  for (const menu of document.querySelectorAll('.menu[open]')) {
    menu.open = false;
    menu.querySelector('summary').focus();
  }
});

// The button says how many objects it would change.
const go = document.querySelector('[data-do]');
if (go) {
  const count = () => {
    const n = document.querySelectorAll('input[name=item]:checked').length;
    for (const text of document.querySelectorAll('[data-count]')) set(text, n === 1 ? `1 ${text.dataset.count}` : `${n} ${text.dataset.count}s`);
    go.disabled = n === 0;
  };
  addEventListener('change', count);
  addEventListener('pageshow', count); // ticks survive the Back button
}

// A mark in a large fleet's picture links its node; without scripts, a page of the list.
addEventListener('click', (event) => {
  const link = event.target.closest?.('[data-at]');
  if (!link || !event.detail || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const svg = link.firstElementChild, box = svg.getBoundingClientRect(), cell = box.width / svg.viewBox.baseVal.width * 8;
  const at = Math.floor((event.clientY - box.top) / cell) * 10 + Math.floor((event.clientX - box.left) / cell);
  event.preventDefault();
  location.assign(`/mark?${new URLSearchParams({site: link.dataset.site, at: Number(link.dataset.at) + at})}`);
});

for (const button of document.querySelectorAll('[data-copy]')) {
  button.hidden = !navigator.clipboard;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    set(button, 'Copied');
  });
}

// A link from another site, as in an alert, comes without the session's cookie: check for a session
// from here.
const login = document.querySelector('[data-session]');
if (login) {
  fetch('/session').then((answer) => answer.json()).then((session) => {
    if (session.in) location.replace(login.dataset.session);
  }, () => {});
}

// A logout in one tab logs out all tabs at once.
const leave = document.querySelector('form.who');
if (leave) {
  leave.addEventListener('submit', () => localStorage.setItem('left', Date.now()));
  addEventListener('storage', async (event) => {
    if (event.key !== 'left') return;
    document.body.hidden = true;
    disconnect();
    for (let i = 0; i < 10; i++) {
      try {
        if (!(await (await fetch('/session')).json()).in) break;
      } catch { /* not running now */ }
      await new Promise((wake) => setTimeout(wake, 200));
    }
    location.reload();
  });
}

// A filled-in form survives the end of the session: it is sent only while the user has a session, with
// that session's token. A live page goes to the login by itself when the session ends.
addEventListener('submit', async (event) => {
  const { target: form, submitter } = event;
  const filled = [...form.elements].some((field) => field.matches('textarea, select, input:not([type=hidden])'));
  if (root || !filled || !form.elements.csrf || event.defaultPrevented || form.dataset.sent) return;
  event.preventDefault();
  if (form.dataset.asks) return; // pressed twice before the answer
  const why = document.getElementById('lost');
  let session;
  form.dataset.asks = 'yes';
  try {
    session = await (await fetch('/session', { signal: AbortSignal.timeout(10_000) })).json();
  } catch {
    set(why, 'The hub does not answer. Nothing was sent.');
    return;
  } finally {
    delete form.dataset.asks;
  }
  if (session.in && session.name === leave.dataset.user) {
    set(why, '');
    form.elements.csrf.value = session.csrf;
    form.dataset.sent = 'yes';
    form.requestSubmit(submitter);
    delete form.dataset.sent; // the Back button returns to it
    return;
  }
  const login = Object.assign(document.createElement('a'), { href: '/login', target: '_blank', rel: 'noopener', textContent: `Log in as ${leave.dataset.user} in another tab` });
  why.replaceChildren('Your session has ended, and nothing was sent. ', login, ', and send it from here then.');
});

setInterval(tick, 1000);
tick();
if (root) {
  connect();
  document.addEventListener('visibilitychange', connect);
  addEventListener('pagehide', disconnect);
  addEventListener('pageshow', (event) => { if (event.persisted) connect(); });
}
