// The page of `pith serve`: a chat, the same question under two policies, and what memory it takes.

import { render } from "/page/markdown.js";
import { bytes, showBars, showRows, showServer } from "/page/memory.js";

const get = (id) => document.getElementById(id);
const node = (name, className = "", text) => {
  const out = document.createElement(name);
  out.className = className;
  if (text !== undefined) out.textContent = text;
  return out;
};
const name = () => "page-" + Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");

let models = [], attached = "", running = null, comparing = false;
const columns = ["a", "b"].map((side) => ({
  side, box: get(`column-${side}`), select: get(`model-${side}`), messages: [], session: name(), detail: null,
}));
const shown = () => (comparing ? columns : columns.slice(0, 1));

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(options.headers ?? {}) };
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await askKey();
    return ask(path, options);
  }
  return answer;
}

function askKey() {
  const dialog = get("key-dialog");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    sessionStorage.setItem("key", get("key").value);
    done();
  }, { once: true }));
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

const policyName = (id) => models.find((m) => m.id === id)?.pith.policy ?? id;

function facts(box, last) {
  const { usage, timings, pith } = last;
  const cached = usage.prompt_tokens_details.cached_tokens;
  const line = node("div", "facts");
  const speed = timings.predicted_per_second;
  line.append(node("b", "", bytes(pith.cache_bytes)), ` for ${usage.total_tokens} tokens, ` +
    `${speed.toFixed(speed < 10 ? 1 : 0)} tokens a second` +
    (cached ? `, ${cached} tokens did not have to be read again` : ""));
  line.title = `policy ${pith.policy}; ${pith.bits.toFixed(2)} bits a number; ended: ${pith.stop_reason}; seed ${pith.seed}`;
  box.append(line);
  if (pith.stop_reason === "token_limit")
    line.append(", cut at the longest answer");
  if (pith.stop_reason === "context_full")
    box.append(node("div", "error facts", "The conversation fills the model's context: begin a new one."));
}

async function answer(column, signal, seed) {
  const box = node("div", "answer");
  const body = node("div"), caret = node("span", "caret");
  box.append(body, caret);
  column.box.append(box);
  let text = "", last = null, drawn = false, over = false;
  const draw = () => {
    drawn = false;
    if (over) return;
    body.replaceChildren(render(text.trimStart()));
    // One below the other, the second would pull the first away.
    if (column.side === "a" || innerWidth > 600) box.scrollIntoView({ block: "end" });
  };
  try {
    const reply = await ask("/v1/chat/completions", {
      method: "POST", signal, headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        model: column.select.value, messages: column.messages, stream: true, seed,
        stream_options: { include_usage: true }, pith: { session: column.session },
        max_tokens: Number(get("length").value),
      }),
    });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      text += event.choices[0]?.delta?.content ?? "";
      if (event.usage) last = event;
      if (!drawn) {
        drawn = true;
        requestAnimationFrame(draw);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") box.append(node("p", "error", error.message));
    else box.append(node("div", "facts", "Stopped."));
  }
  draw();
  over = true;
  caret.remove();
  if (text) column.messages.push({ role: "assistant", content: text });
  if (last) facts(box, last);
  if (last && !text.trim()) body.append(node("p", "quiet", "(The answer has no words.)"));
  return { text, box, body, whole: last !== null };
}

const differs = (words) => words === 0 ? "Differs from the start"
  : `Differs after ${words} ${words === 1 ? "word" : "words"}`;

// The text from the first difference on is marked in both.
function markDifference(one, other) {
  for (const result of [one, other]) result.text = result.text.trimStart();
  const a = one.text, b = other.text;
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) ++same;
  const equal = same === a.length && same === b.length;
  for (const result of [one, other]) {
    if (!equal) {
      const rest = document.createElement("mark");
      rest.textContent = result.text.slice(same);
      const begin = node("p", "", result.text.slice(0, same));
      begin.append(rest);
      result.body.replaceChildren(begin);
    }
    result.box.append(node("div", equal ? "verdict same" : "verdict differs", equal ? "Same answer"
      : differs(a.slice(0, same).split(/\s+/).filter(Boolean).length)));
  }
}

async function refresh() {
  try {
    const status = await (await ask("/v1/pith/status")).json();
    showServer(get("server"), status);
  } catch { /* the server may be ending; the next look tells */ }
}

async function look() {
  const talks = [];
  for (const column of shown()) {
    const reply = await ask(`/v1/pith/sessions/${column.session}`);
    if (!reply.ok) continue;
    const detail = await reply.json();
    if (detail.where !== "memory") continue; // it is on disk, and its rows with it
    column.detail = detail;
    talks.push({ name: policyName(column.select.value), detail: column.detail });
  }
  if (talks.length) {
    showBars(get("bars"), talks);
    showRows(get("rows"), talks[talks.length - 1].detail);
  }
  refresh();
}

function busy(on) {
  get("stop").hidden = !on;
  get("send").disabled = on;
  get("again").disabled = on || columns[0].messages.length < 2;
}

async function run() {
  running = new AbortController();
  busy(true);
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const watch = setInterval(refresh, 1000);
  const results = await Promise.all(shown().map((c) => answer(c, running.signal, seed)));
  clearInterval(watch);
  if (comparing && results.every((r) => r.whole)) markDifference(...results);
  running = null;
  busy(false);
  look();
  get("text").focus();
}

function send() {
  const typed = get("text").value.trim();
  if (running || (!typed && !attached)) return;
  const content = attached ? `${attached}\n\n${typed}` : typed;
  for (const column of shown()) {
    column.box.querySelector(".welcome")?.remove();
    column.messages.push({ role: "user", content });
    const box = node("div", "user", typed || "(a file)");
    if (attached) box.prepend(node("div", "quiet", get("attached").textContent));
    column.box.append(box);
  }
  attached = "";
  get("attached").hidden = true;
  get("text").value = "";
  run();
}

function again() {
  for (const column of shown()) {
    if (column.messages.at(-1)?.role !== "assistant") continue;
    column.messages.pop();
    column.box.querySelector(".answer:last-of-type")?.remove();
  }
  run();
}

function welcome(column) {
  const box = node("div", "welcome");
  box.append(node("h2", "", comparing ? policyName(column.select.value) : "Ask, and see what is remembered"),
    node("p", "quiet", comparing ? "The same question goes to both sides; the first difference is marked."
      : "Pith keeps conversations in a fraction of the memory. The side panel shows how much."));
  if (column.side === "a") {
    const examples = node("div", "examples");
    for (const text of ["The ship lay at anchor", "Explain what a cache is", "Name three rivers"]) {
      const button = node("button", "", text);
      button.type = "button";
      button.addEventListener("click", () => { get("text").value = text; send(); });
      examples.append(button);
    }
    box.append(examples);
  }
  column.box.replaceChildren(box);
}

function fresh() {
  running?.abort();
  for (const column of columns) {
    column.messages = [];
    column.session = name();
    welcome(column);
  }
  busy(false);
}

function compare() {
  comparing = !comparing;
  get("compare").setAttribute("aria-pressed", String(comparing));
  get("model-b-label").hidden = get("column-b").hidden = !comparing;
  const same = columns[0].select.value === columns[1].select.value;
  if (same && models.length > 1) columns[1].select.value = models.find((m) => m.id !== columns[0].select.value).id;
  fresh();
}

async function start() {
  models = (await (await ask("/v1/models")).json()).data;
  for (const { select } of columns) {
    for (const model of models) {
      const option = node("option", "", model.id);
      option.value = model.id;
      option.title = model.pith.policy;
      select.append(option);
    }
    select.addEventListener("change", fresh);
  }
  fresh();
  refresh();
  setInterval(() => { if (!document.hidden && !running) refresh(); }, 5000);
}

get("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
get("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
get("stop").addEventListener("click", () => running?.abort());
get("again").addEventListener("click", again);
get("fresh").addEventListener("click", fresh);
get("compare").addEventListener("click", compare);
get("file").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  attached = await file.text();
  get("attached").textContent = `${file.name}: ${attached.split(/\s+/).length} words`;
  get("attached").hidden = false;
});
start();
