// The page polls /page/state and shows it. Clients choose names of rules and keys: they become text nodes and
// attributes, never markup.

// With reduced motion the figures change less often.
const EVERY = matchMedia("(prefers-reduced-motion: reduce)").matches ? 10_000 : 2_000;
const PATIENCE = 10_000;

const SOURCES = {
  server: "the server decided the request",
  cache: "a cached denial of the server",
  lease: "units leased from the server ahead",
  eventual: "counts that synchronize in the background",
  failure: "on_failure, while the server is away",
  local: "a window in this process",
};
// Lines of the latency chart, in seconds; its caption names them.
const LINES = [0.0001, 0.001, 0.01, 0.1];
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]];

const at = (id) => document.getElementById(id);
let token = "";
let paused = false;
let keyPrefix = "";
let shownAt = null;
let looking = 0;

// -- Words -----------------------------------------------------------------------------------------------------------

const number = (value) => value.toLocaleString("en");
const clock = (date) => date.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"});
const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);

/** A duration in ms, as the commands spell it. */
function duration(ms) {
  const [name, unit] = UNITS.find(([, unit]) => ms % unit === 0);
  return `${ms / unit}${name}`;
}

/** How long something took, in seconds. */
function took(seconds) {
  if (seconds === null) return "–";
  if (seconds >= 1) return "over 1 s";
  return seconds < 0.001 ? `${Math.round(seconds * 1e6)} µs` : `${+(seconds * 1e3).toPrecision(2)} ms`;
}

function amount(count, one, more = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : more}`;
}

/** Say something in a live region, once. */
function say(element, text, warns = false) {
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle("warns", warns);
}

// -- Elements --------------------------------------------------------------------------------------------------------

/** An element. What it contains is elements and text. */
function make(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...content);
  return made;
}

function draw(name, attributes) {
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) drawn.setAttribute(attribute, value);
  return drawn;
}

/** Show items as rows. A row stays the same element as long as its item is there, so that focus stays, too. */
function rows(body, items, name, create, update) {
  const focused = document.activeElement;
  const before = new Map([...body.rows].map((row) => [row.name, row]));
  items.forEach((item, place) => {
    const row = before.get(name(item)) ?? Object.assign(create(item), {name: name(item)});
    before.delete(row.name);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
    update(row, item);
  });
  for (const row of before.values()) row.remove();
  if (focused.isConnected && document.activeElement !== focused) focused.focus({preventScroll: true});
}

const nameOf = ({domain, rule}) => JSON.stringify([domain, rule]);
const ruleHeading = ({domain, rule}) => make("th", {scope: "row"}, rule, make("span", {class: "quiet"}, domain));
const numberCell = () => make("td", {class: "number"});

// -- Charts ----------------------------------------------------------------------------------------------------------

/** Bars above a line for what was granted, and below it for what was denied. The highest of each kind. */
function mirrored(svg, steps) {
  const {width, height} = svg.viewBox.baseVal;
  const [deniedMost, grantedMost] = [0, 1].map((kind) => Math.max(0, ...steps.map((step) => step[kind])));
  const scale = (height - 2) / Math.max(1, deniedMost + grantedMost);
  const line = 1 + grantedMost * scale;
  const wide = width / Math.max(1, steps.length);
  const bars = steps.flatMap(([denied, granted], place) => {
    const bar = {x: place * wide + wide * 0.1, width: wide * 0.8};
    return [
      granted && draw("rect", {...bar, class: "granted", y: line - granted * scale, height: granted * scale}),
      denied && draw("rect", {...bar, class: "denied", y: line, height: denied * scale}),
    ].filter(Boolean);
  });
  svg.replaceChildren(...bars, draw("line", {class: "base", x1: 0, x2: width, y1: line, y2: line}));
  return {grantedMost, deniedMost};
}

/** The duration in seconds that a share of the requests is faster than; none of no requests. */
function quantile(counts, bounds, share) {
  const wanted = share * sum(counts);
  if (wanted === 0) return null;
  let before = 0;
  for (const [place, count] of counts.entries()) {
    if (before + count >= wanted) {
      const [lower, upper] = [bounds[place - 1] ?? 0, bounds[place] ?? bounds.at(-1)];
      return lower + (upper - lower) * (wanted - before) / count;
    }
    before += count;
  }
  return bounds.at(-1);
}

/** A bar for each step, from the median up to the 99th percentile, on a logarithmic scale. */
function ranged(svg, steps, bounds) {
  const {width, height} = svg.viewBox.baseVal;
  const [least, most] = [bounds[0] / 2, bounds.at(-1)].map(Math.log);
  const y = (seconds) => height - 2 - (height - 4) * Math.max(0, (Math.log(seconds) - least) / (most - least));
  const wide = width / Math.max(1, steps.length);
  const grid = LINES.map((line) => draw("line", {class: "grid", x1: 0, x2: width, y1: y(line), y2: y(line)}));
  const bars = steps.flatMap((counts, place) => {
    const [median, slowest] = [0.5, 0.99].map((share) => quantile(counts, bounds, share));
    if (median === null) return [];
    const top = y(slowest);
    return draw("rect", {class: "ranged", x: place * wide + wide * 0.1, width: wide * 0.8, y: top,
                         height: Math.max(3, y(median) - top)});
  });
  svg.replaceChildren(...grid, ...bars);
}

// -- What is shown again and again -----------------------------------------------------------------------------------

function show(state) {
  keyPrefix = state.prefix;
  at("version").textContent = state.version;
  at("token-form").hidden = !state.needs_token;
  showDecisions(state.decisions, state.step, state.rules);
  showSources(state.sources);
  showLatency(state.durations);
  showKeys(state.keys);
  showRules(state.rules);
  shownAt = new Date();
  if (paused) return;
  if (state.server === "away") {
    say(at("status"), "The counting server is away. Each limit decides by its on_failure.", true);
  } else if (state.shadow_mode) {
    say(at("status"), "Shadow mode: everything is counted, nothing is denied.", true);
  } else {
    say(at("status"), state.server === "none" ? "Running, without a counting server." : "Running.");
  }
}

function showDecisions({all, rules, count}, step, inForce) {
  const inShadow = new Set(inForce.rules.filter((rule) => rule.shadow_mode).map(nameOf));
  const [denied, granted] = [0, 1].map((kind) => sum(all.map((one) => one[kind])));
  at("granted").textContent = number(granted);
  at("denied").textContent = number(denied);
  const {grantedMost, deniedMost} = mirrored(at("decisions-chart"), all);
  at("decisions-chart").setAttribute("aria-label",
    `Granted ${number(granted)} and denied ${number(denied)} in five minutes`);
  at("decisions-scale").textContent =
    `The most in ${duration(step)}: ${number(grantedMost)} and ${number(deniedMost)}.`;
  rows(at("by-rule"), rules, nameOf, (rule) => {
    const seen = {viewBox: "0 0 240 30", preserveAspectRatio: "none", "aria-hidden": "true"};
    const chart = draw("svg", {class: "course", ...seen});
    return make("tr", {}, ruleHeading(rule), numberCell(), numberCell(), make("td", {class: "wide"}, chart));
  }, (row, rule) => {
    row.querySelector(".quiet").textContent =
      inShadow.has(nameOf(rule)) ? `${rule.domain}, in shadow mode: denies nothing` : rule.domain;
    for (const kind of [0, 1]) row.cells[2 - kind].textContent = number(sum(rule.steps.map((one) => one[kind])));
    mirrored(row.querySelector("svg"), rule.steps);
  });
  at("by-rule-note").textContent = rules.length === 0 ? "No rule has decided anything in the last five minutes."
    : count > rules.length ? `And ${amount(count - rules.length, "rule")} more.` : "";
}

function showSources(sources) {
  const all = sum(sources.map(({decisions}) => decisions));
  const share = (decisions) => all === 0 ? "–" : `${Math.round(100 * decisions / all)} %`;
  rows(at("sources"), sources, ({source}) => source, ({source}) => make("tr", {},
    make("th", {scope: "row"}, source, make("span", {class: "quiet"}, SOURCES[source] ?? "")), numberCell(), numberCell(),
  ), (row, {decisions}) => {
    row.cells[1].textContent = number(decisions);
    row.cells[2].textContent = share(decisions);
  });
  at("local").textContent = share(sum(sources.filter(({source}) => source !== "server").map(({decisions}) => decisions)));
}

function showLatency({bounds, steps}) {
  const all = bounds.concat(Infinity).map((_, place) => sum((steps ?? []).map((counts) => counts[place])));
  const [median, slowest] = [0.5, 0.99].map((share) => quantile(all, bounds, share));
  at("median").textContent = took(median);
  at("slowest").textContent = took(slowest);
  ranged(at("latency-chart"), steps ?? [], bounds);
  at("latency-chart").setAttribute("aria-label", median === null ? "No requests in five minutes"
    : `${amount(sum(all), "request")} in five minutes: median ${took(median)}, 99 % faster than ${took(slowest)}`);
}

function showKeys({denied = [], barred = ""}) {
  rows(at("top"), denied, ({database, key}) => `${database} ${key}`, ({database, key}) => {
    const look = make("button", {type: "button", class: "look", title: "Look this key up"}, key);
    look.addEventListener("click", () => {
      at("key").value = key;
      lookUp(key);
    });
    const place = database === 0 ? [] : [make("span", {class: "quiet"}, `database ${database}`)];
    return make("tr", {}, make("th", {scope: "row"}, look, ...place), numberCell(), numberCell());
  }, (row, {this_minute: now, last_minute: before}) => {
    row.cells[1].textContent = number(now);
    row.cells[2].textContent = number(before);
  });
  at("top-note").textContent = barred || (denied.length === 0 ? "No key was denied in this minute or the last." : "");
}

function showRules({rules, count}) {
  const name = (rule) => JSON.stringify(rule);
  rows(at("rules"), rules, name, (rule) => {
    const lines = (texts) => texts.map((text) => make("div", {}, text));
    const modes = [["shadow_mode", "shadow mode: denies nothing"], ["quota_mode", "quota mode"]];
    const limits = rule.limits.map(({limit, window, resolution, strict, block, record}) => [
      `${number(limit)} per ${duration(window)}`, `resolution ${duration(resolution)}`, strict && "strict",
      block && `blocks for ${duration(block)}`, record && "records"].filter(Boolean).join(", "));
    const decided = rule.limits.map((limit) => `${limit.mode}; on failure: ${limit.on_failure}`);
    return make("tr", {}, ruleHeading(rule),
      make("td", {}, ...lines([...limits, ...rule.unlimited ? ["unlimited"] : []])),
      make("td", {}, ...lines([...new Set(decided), ...modes.filter(([mode]) => rule[mode]).map(([, text]) => text)])));
  }, () => {});
  at("rules-note").textContent = count === 0 ? "There are none."
    : count > rules.length ? `And ${number(count - rules.length)} more: see /rlconfig.` : "";
}

// -- Asking ----------------------------------------------------------------------------------------------------------

/** What a path answers, in JSON. */
async function ask(path, body) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const sent = body === undefined ? {} : {method: "POST", body: JSON.stringify(body)};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {...sent, headers, signal: AbortSignal.timeout(PATIENCE), cache: "no-store"});
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), {status: response.status});
  return answer;
}

async function refresh() {
  let state;
  try {
    state = await ask("/page/state");
  } catch {
    const since = shownAt ? ` What is shown is from ${clock(shownAt)}.` : "";
    say(at("status"), `swlimitd does not answer.${since}`, true);
    return;
  }
  show(state);
}

async function refreshForEver() {
  for (;;) {
    if (!paused && !document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

/** Do what was asked for about a key, and say how it went. */
async function attempt(what) {
  say(at("said"), ""); // so that the same words are heard again
  try {
    say(at("said"), await what());
  } catch (error) {
    const why = error.status === undefined ? "swlimitd does not answer" : error.message;
    const isBarred = error.status === 401;
    say(at("said"), isBarred ? "A token is needed that is known here." : `That did not work: ${why}.`, true);
  }
}

const lookUp = (key) => attempt(() => load(key));

/** Show what the server holds of a key; what is to be said of that. */
async function load(key) {
  const own = ++looking;
  let held = null;
  try {
    held = await ask(`/v1/info?${new URLSearchParams({key})}`);
  } catch (error) {
    if (error.status !== 404) {
      at("held").hidden = true;
      throw error;
    }
  }
  if (own !== looking) return at("said").textContent; // another one was looked up meanwhile
  showHeld(key, held);
  return held ? `The server holds ${amount(held.total, "unit")} of this key.` : "There is no such key on the server.";
}

function showHeld(key, held) {
  at("held").hidden = false;
  at("held-key").textContent = key;
  const blocked = held?.blocked_until > Date.now() ? `until ${new Date(held.blocked_until).toLocaleString()}` : "no";
  const facts = held && held.window > 0 ? [
    ["units", number(held.total)],
    ["window", duration(held.window)],
    ["resolution", duration(held.resolution)],
  ] : [];
  if (held) facts.push(["blocked", blocked], ["memory", amount(held.memory, "byte")]);
  at("held-facts").replaceChildren(...facts.flatMap(([name, fact]) => [make("dt", {}, name), make("dd", {}, fact)]));
  const counts = (held?.counts ?? []).filter(([, units]) => units > 0);
  at("held-figure").hidden = counts.length === 0;
  if (counts.length === 0) return;
  const newest = held.counts.at(-1)[0];
  const steps = Array.from({length: held.window / held.resolution + 1}, () => [0, 0]);
  for (const [start, units] of counts) {
    const place = steps.length - 1 - Math.round((newest - start) / held.resolution);
    if (place in steps) steps[place][1] += units;
  }
  const {grantedMost} = mirrored(at("held-chart"), steps);
  at("held-scale").textContent = `Units by subinterval, the oldest first; the highest is ${number(grantedMost)}.`;
  at("held-chart").setAttribute("aria-label",
    `${amount(held.total, "unit")} in ${amount(counts.length, "subinterval")}`);
}

/** The key that is shown, as the API takes it: without the prefix that it puts before every key. */
function ownKey() {
  const key = at("held-key").textContent;
  if (key.startsWith(keyPrefix)) return key.slice(keyPrefix.length);
  throw Object.assign(new Error(`keys of swlimitd begin with ${keyPrefix}`), {status: 400});
}

/** Change the block of the key that is shown, and look it up again. */
function change(what) {
  const key = at("held-key").textContent;
  return attempt(async () => {
    const done = await what();
    await load(key);
    refresh();
    return done;
  });
}

// -- What people do --------------------------------------------------------------------------------------------------

function onSubmit(form, act) {
  at(form).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
}

onSubmit("token-form", () => {
  token = at("token").value.trim();
  refresh();
});
onSubmit("look-up", () => lookUp(at("key").value));
onSubmit("block", () => change(async () => {
  const {blocked_until: until} = await ask("/v1/block", {key: ownKey(), duration: at("duration").value.trim()});
  return `Blocked until ${new Date(until).toLocaleString()}.`;
}));
at("unblock").addEventListener("click", () => change(async () => {
  const {unblocked} = await ask("/v1/unblock", {key: ownKey()});
  return unblocked ? "It is not blocked any more." : "It was not blocked.";
}));
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", paused);
  if (paused) say(at("status"), `Paused at ${clock(new Date())}.`);
  else refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) refresh();
});

refreshForEver();
