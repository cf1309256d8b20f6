// Returns the problems of the page, one line each. The body of a function.
const found = [];
const root = document.documentElement;
if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} px wide in a window of ${innerWidth} px`);

function channels(color) {
  const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
  return { rgb: [r, g, b], a };
}
function over(top, bottom) {
  return top.rgb.map((value, n) => value * top.a + bottom[n] * (1 - top.a));
}
function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function paper(element) {
  if (!element) return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  const color = channels(getComputedStyle(element).backgroundColor);
  return color.a === 1 ? color.rgb : over(color, paper(element.parentElement));
}

document.querySelectorAll("details").forEach((details) => (details.open = true));
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim();
  const element = walker.currentNode.parentElement;
  if (!text || element.closest("title, noscript, .skip, .sr") || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const behind = paper(element);
  const svg = element.closest("svg");
  const ink = channels(svg ? style.fill : style.color);
  const [a, b] = [luminance(over(ink, behind)), luminance(behind)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  const size = parseFloat(style.fontSize) * scale;
  if (size < 11.9) found.push(`${size} px: ${text.slice(0, 40)}`);
}
// Collects the boxes of all text, to find text that overlaps or is cut off.
const lines = [];
const letters = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (letters.nextNode()) {
  const text = letters.currentNode.data.trim();
  const element = letters.currentNode.parentElement;
  if (!text || element.closest("title, noscript, .skip, .scroll, .sr") || !element.checkVisibility()) continue;
  const range = document.createRange();
  range.selectNodeContents(letters.currentNode);
  const card = element.closest(".gpu, .job, .hub, .node, section")?.getBoundingClientRect();
  for (const { left, right, top, bottom } of range.getClientRects()) {
    lines.push({ text: text.slice(0, 40), left, right, top, bottom });
    if (card && (right > card.right + 1 || left < card.left - 1 || bottom > card.bottom + 1)) {
      found.push(`outside its frame: ${text.slice(0, 40)}`);
    }
  }
}
lines.sort((a, b) => a.top - b.top);
lines.forEach((one, n) => {
  for (let m = n + 1; m < lines.length && lines[m].top < one.bottom - 4; m += 1) {
    const other = lines[m];
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    if (across > 1) found.push(`${one.text} overlaps ${other.text}`);
  }
});
// The start and the reason of a waiting job are seen without scrolling to the side.
for (const job of document.querySelectorAll("#waiting tbody tr:not([hidden])")) {
  for (const part of [".start", ".reason"]) {
    const range = document.createRange();
    range.selectNodeContents(job.querySelector(part));
    const frame = job.closest(".scroll").getBoundingClientRect();
    const boxes = [...range.getClientRects()];
    const seen = ({ left, right }) => left >= Math.max(frame.left, 0) && right <= Math.min(frame.right, innerWidth) + 1;
    if (boxes.length === 0 || !boxes.every(seen)) found.push(`${part} of a waiting job is not seen: ${job.textContent.slice(0, 40)}`);
  }
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
if (new Set(ids).size !== ids.length) found.push("duplicate id");
for (const link of document.querySelectorAll("a[href^='#']")) {
  const id = (link.getAttribute("href") ?? "").slice(1);
  if (!document.getElementById(id)) found.push(`link without a target: ${id}`);
}
document.querySelectorAll("details").forEach((details) => (details.open = false));
return found;
