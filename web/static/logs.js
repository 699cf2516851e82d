// The log's page: follows from the last line, searches, pauses. The oldest lines go as new ones
// come.

const log = document.getElementById('log');
const form = document.getElementById('which');
const search = form.elements.q;
const trouble = document.getElementById('trouble');
const most = 5000; // lines

const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// ---- lines

let shown = 0, total = 0;

function stamp(at) { // as the hub writes it: MM-DD HH:MM:SS
  return at.slice(5, 10) + ' ' + at.slice(11, 19);
}

function lineOf([at, text]) {
  const line = document.createElement('div');
  if (at) {
    const time = line.appendChild(document.createElement('time'));
    time.dateTime = at;
    time.textContent = stamp(at);
  }
  line.appendChild(document.createElement('span')).textContent = text;
  return line;
}

function matchOne(line, wanted) {
  const span = line.lastElementChild, text = span.textContent;
  const at = wanted ? text.toLowerCase().indexOf(wanted) : 0;
  const was = line.hidden;
  line.hidden = at < 0;
  if (wanted && at >= 0 && text.toLowerCase().length === text.length) {
    const mark = document.createElement('mark');
    mark.textContent = text.slice(at, at + wanted.length);
    span.replaceChildren(text.slice(0, at), mark, text.slice(at + wanted.length));
  } else if (span.firstElementChild) {
    span.textContent = text;
  }
  return was !== line.hidden;
}

const word = () => search.value.trim().toLowerCase();

function count() {
  const lines = total === 1 ? '1 line' : `${total.toLocaleString('en')} lines`;
  set(document.getElementById('count'), word() ? `${shown.toLocaleString('en')} of ${lines}` : lines);
}

function match() {
  const wanted = word();
  shown = 0;
  for (const line of log.children) {
    if (line.nodeName !== 'DIV') continue;
    matchOne(line, wanted);
    if (!line.hidden) shown++;
  }
  empty();
  count();
}

// empty says that no line is shown.
function empty() {
  let note = log.querySelector('.empty');
  if (shown > 0) { note?.remove(); return; }
  note ??= log.insertBefore(Object.assign(document.createElement('p'), { className: 'empty' }), log.firstChild);
  set(note, total ? `No line has “${search.value.trim()}”.` : trouble.hidden ? 'Nothing has been logged.' : 'There is no line to show.');
}

const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;

function add(lines) {
  const stay = !atEnd(), wanted = word();
  const part = document.createDocumentFragment();
  for (const each of lines.slice(-most)) {
    const line = lineOf(each);
    matchOne(line, wanted);
    if (!line.hidden) shown++;
    total++;
    part.append(line);
  }
  log.append(part);
  let gone = 0; // in pixels, to keep the reading position
  while (total > most) {
    const old = log.querySelector('div');
    if (!old.hidden) { shown--; if (stay) gone += old.offsetHeight; }
    total--;
    old.remove();
  }
  empty();
  count();
  if (!stay) log.scrollTop = log.scrollHeight; else if (gone) log.scrollTop -= gone;
}

// ---- following

const silence = 25_000; // ms without a sign of life until the connection counts as lost
let source, watchdog, delay = 1000, from = log.dataset.from, paused = false, over = false;

function tell(text) {
  trouble.hidden = !text;
  set(trouble, text);
  empty();
}

function lost(is) {
  set(document.getElementById('lost'), is ? 'Connection to the hub lost; trying again…' : '');
}

function heard() {
  lost(false);
  clearTimeout(watchdog);
  watchdog = setTimeout(later, silence, true);
}

function stop() {
  clearTimeout(watchdog);
  source?.close();
  source = null;
}

async function later(isLost) {
  stop();
  if (isLost) lost(true);
  await new Promise((wake) => setTimeout(wake, delay * (0.5 + Math.random())));
  delay = Math.min(delay * 2, 15_000);
  if (isLost) {
    try {
      if (!(await (await fetch('/session')).json()).in) { location.reload(); return; }
    } catch { /* not there yet */ }
  }
  if (!source) follow();
}

// follow opens the stream of new lines while the page is visible: the number of streams is limited.
function follow() {
  stop();
  if (paused || over || document.hidden) return;
  source = new EventSource(log.dataset.stream + (from ? '&from=' + encodeURIComponent(from) : ''));
  source.addEventListener('hello', heard);
  source.addEventListener('beat', () => { heard(); delay = 1000; });
  source.addEventListener('lines', (event) => {
    heard();
    tell('');
    delay = 1000;
    from = event.lastEventId || from;
    add(JSON.parse(event.data));
  });
  source.addEventListener('over', (event) => {
    const { text, again } = JSON.parse(event.data);
    heard();
    tell(text);
    over = !again;
    if (again) later(false); else { stop(); document.getElementById('pause').hidden = true; }
  });
  source.onerror = () => later(true);
}

// ---- buttons

const pause = document.getElementById('pause');
pause.addEventListener('click', () => {
  paused = !paused;
  set(pause, paused ? 'Follow' : 'Pause');
  if (paused) { stop(); lost(false); } else { delay = 1000; follow(); log.scrollTop = log.scrollHeight; }
});

for (const name of ['times', 'wrap']) {
  const box = document.getElementById(name);
  const kept = localStorage.getItem('log-' + name);
  box.checked = kept ? kept === 'on' : name === 'wrap' || innerWidth >= 700;
  const apply = () => log.classList.toggle('no-' + name, !box.checked);
  box.addEventListener('change', () => { localStorage.setItem('log-' + name, box.checked ? 'on' : 'off'); apply(); });
  apply();
}

let typing;
search.addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams(location.search);
    if (word()) query.set('q', search.value.trim()); else query.delete('q');
    history.replaceState(null, '', query.size ? `?${query}` : location.pathname);
    match();
  }, 120);
});
form.addEventListener('change', (event) => { if (event.target !== search) form.submit(); });
form.addEventListener('submit', (event) => { if (document.activeElement === search) event.preventDefault(); });
form.classList.add('is-live');

document.getElementById('live').hidden = false;
for (const line of log.children) if (line.nodeName === 'DIV') total++;
match();
log.scrollTop = log.scrollHeight;
if (log.dataset.stream) {
  follow();
  document.addEventListener('visibilitychange', () => { lost(false); delay = 1000; follow(); });
  addEventListener('pagehide', stop);
  addEventListener('pageshow', (event) => { if (event.persisted) follow(); });
}
