// Requests the last lines of crashed containers, once for each crash.

const asked = new WeakMap();

async function fill(box) {
  const url = box.dataset.fill;
  if (asked.get(box) === url) return;
  asked.set(box, url);
  box.textContent = 'Asking its device…';
  let text;
  try {
    const answer = await fetch(url, { headers: { Accept: 'application/json' } });
    if (answer.ok) {
      const { lines, trouble } = await answer.json();
      text = lines.join('\n') + (trouble ? (lines.length ? '\n\n' : '') + trouble : '') || 'It has logged nothing.';
    } else {
      text = answer.status === 410 ? 'It has been started again since.' : 'The hub does not tell: look at its whole log.';
    }
  } catch {
    text = 'The hub does not answer.';
    asked.delete(box);
  }
  if (box.dataset.fill !== url) return;
  box.textContent = text;
  box.scrollTop = box.scrollHeight;
}

const look = () => { for (const box of document.querySelectorAll('[data-fill]')) fill(box); };
new MutationObserver(look).observe(document.getElementById('main'), { subtree: true, childList: true, attributes: true, attributeFilter: ['data-fill'] });
look();
