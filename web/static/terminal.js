// The terminal's page: xterm.js on one side, the hub's socket on the other.

const box = document.getElementById('terminal');
const state = document.getElementById('state');
const form = document.getElementById('which');

// The line below the terminal keeps its height, so that nothing moves when its text changes.
function tell(text, over) {
  state.classList.toggle('is-over', Boolean(over));
  if (state.textContent !== text) state.textContent = text;
}

// The page's policy forbids inline styles, which xterm.js uses. They are added as style sheet objects
// instead, which the policy allows.
function styleAsObjects() {
  const make = Document.prototype.createElement;
  Document.prototype.createElement = function (name, ...rest) {
    if (String(name).toLowerCase() !== 'style') return make.call(this, name, ...rest);
    const sheet = new CSSStyleSheet(), stand = make.call(this, 'span');
    let text = '';
    stand.hidden = true;
    Object.defineProperty(stand, 'textContent', {
      get: () => text,
      set: (css) => { text = css; sheet.replaceSync(css); },
    });
    stand.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
      Element.prototype.remove.call(stand);
    };
    document.adoptedStyleSheets.push(sheet);
    return stand;
  };
  const write = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === 'style') this.style.cssText = value; else write.call(this, name, value);
  };
}

const keys = { esc: '\x1b', tab: '\t', 'ctrl-c': '\x03', 'ctrl-d': '\x04', up: '\x1b[A' };
const silence = 25_000; // ms without a sign of life until the connection counts as lost
const piece = 16 * 1024; // characters per message

async function open() {
  const [{ Terminal }, { FitAddon }] = await Promise.all([import(box.dataset.xterm), import(box.dataset.fit)]);
  styleAsObjects();
  const term = new Terminal({
    cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches, fontFamily: getComputedStyle(box).getPropertyValue('--mono'), fontSize: innerWidth < 600 ? 12 : 14,
    minimumContrastRatio: 4.5, scrollback: 5000, theme: { background: '#10151b', foreground: '#e6ebf0', cursor: '#7db9f5', selectionBackground: '#2f4f72' },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(box);
  fit.fit();
  document.getElementById('bar').hidden = false;

  let socket, watchdog, over = false;
  const send = (data) => { if (socket?.readyState === WebSocket.OPEN) socket.send(data); };
  const encoder = new TextEncoder();
  const type = (text) => {
    for (let i = 0; i < text.length; i += piece) send(encoder.encode(text.slice(i, i + piece)));
  };

  function finish(text) {
    over = true;
    clearTimeout(watchdog);
    tell(text + ' ', true);
    const again = state.appendChild(document.createElement('button'));
    again.type = 'button';
    again.className = 'quiet';
    again.textContent = 'Open again';
    again.addEventListener('click', connect);
    term.options.disableStdin = true;
    term.options.cursorBlink = false;
    box.classList.add('is-over');
    socket?.close();
    if (box.contains(document.activeElement)) again.focus();
  }

  function connect() {
    over = false;
    tell('Connecting…');
    term.reset();
    term.options.disableStdin = false;
    box.classList.remove('is-over');
    socket = new WebSocket(new URL(box.dataset.socket, location.href.replace(/^http/, 'ws')));
    socket.binaryType = 'arraybuffer';
    const mine = socket;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => { if (mine === socket && !over) finish('Connection to the hub lost.'); }, silence);
    };
    heard();
    socket.onopen = () => send(JSON.stringify({ csrf: box.dataset.csrf, cols: term.cols, rows: term.rows }));
    socket.onmessage = ({ data }) => {
      if (mine !== socket) return;
      heard();
      if (data instanceof ArrayBuffer) { term.write(new Uint8Array(data)); return; }
      const note = JSON.parse(data);
      if (note.ready) { tell('Connected.'); term.focus(); }
      if (note.end) finish(note.end);
    };
    socket.onclose = () => { if (mine === socket && !over) finish('Connection to the hub lost.'); };
  }

  term.onData(type);
  term.onBinary((data) => send(Uint8Array.from(data, (c) => c.charCodeAt(0))));
  term.onResize(({ cols, rows }) => send(JSON.stringify({ cols, rows })));
  new ResizeObserver(() => fit.fit()).observe(box);
  term.attachCustomKeyEventHandler((event) => {
    if (event.type !== 'keydown') return true;
    if (event.key === 'F6' && event.shiftKey) {
      form.elements.command.focus();
      return false;
    }
    if (event.ctrlKey && event.shiftKey && event.code === 'KeyC' && term.hasSelection()) {
      event.preventDefault();
      navigator.clipboard?.writeText(term.getSelection());
      return false;
    }
    return true;
  });
  for (const button of document.querySelectorAll('[data-key]')) {
    button.addEventListener('click', () => { type(keys[button.dataset.key]); term.focus(); });
  }
  const reader = document.getElementById('reader');
  reader.checked = localStorage.getItem('terminal-reader') === 'on';
  const read = () => { term.options.screenReaderMode = reader.checked; };
  reader.addEventListener('change', () => { localStorage.setItem('terminal-reader', reader.checked ? 'on' : 'off'); read(); });
  read();
  addEventListener('pagehide', () => { over = true; clearTimeout(watchdog); socket?.close(); });
  connect();
}

form.elements.container.addEventListener('change', () => form.submit());
if (box) open().catch((problem) => tell(`The terminal could not be shown: ${problem.message}`, true));
