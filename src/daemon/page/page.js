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
  failure: "on_failure, while the server is unavailable",
  local: "a window in this process",
};
// Lines of the latency chart, in seconds; its caption names them.
const LINES = [0.0001, 0.001, 0.01, 0.1];
const STEPS = 60;
// The part of the past that is shown, in words, and the axis of its charts.
const RANGES = {
  hour: {words: "the last hour", axis: ["1 hour ago", "45 min", "30 min", "15 min", "now"]},
  five_minutes: {words: "the last five minutes", axis: ["5 min ago", "4", "3", "2", "1", "now"]},
};
// Longer tables are folded.
const FOLDED = 20;
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]];

const at = (id) => document.getElementById(id);
let token = "";
let paused = false;
let keyPrefix = "";
let range = "hour";
let shownAt = null;
let looking = 0;
let asked = 0;

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

/** How long ago, or for how long, in words. */
function span(seconds) {
  const [unit, length] = [["d", 86_400], ["h", 3600], ["min", 60]].find(([, length]) => seconds >= 2 * length) ?? ["s", 1];
  return `${Math.max(0, Math.floor(seconds / length))} ${unit}`;
}

const ago = (ms) => `${span((Date.now() - ms) / 1000)} ago`;

/** So many in so many seconds, per second. */
const rate = (count, seconds) => `${+(count / seconds).toPrecision(2)}/s`;

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

/** The first items of a table, or all where somebody has unfolded it. */
function folded(table, items) {
  const more = at(`${table}-more`);
  const isOpen = more.getAttribute("aria-expanded") === "true";
  more.hidden = items.length <= FOLDED;
  more.textContent = isOpen ? `Show the first ${FOLDED} only` : `Show ${number(items.length - FOLDED)} more`;
  return isOpen ? items : items.slice(0, FOLDED);
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

/** Steps of `kinds` counts, also if nothing was counted. */
const padded = (steps, kinds) => steps?.length ? steps : Array(STEPS).fill(Array(kinds).fill(0));

/** Put texts beside a chart, each at a share of its height from above; of two that would overlap, the first one. */
function mark(svg, marks) {
  for (const old of svg.parentNode.querySelectorAll(".mark")) old.remove();
  const taken = [];
  for (const [text, share] of marks) {
    if (taken.some((other) => Math.abs(other - share) < 0.12)) continue;
    taken.push(share);
    const made = make("span", {class: "mark", "aria-hidden": "true"}, text);
    made.style.top = `${100 * share}%`;
    made.style.transform = `translateY(-${100 * share}%)`;
    svg.parentNode.append(made);
  }
}

/** Say what is drawn where the pointer is: `describe` has the words for a step. */
function onPoint(chart, describe) {
  const point = ({clientX}) => {
    const {left, width} = at(chart).getBoundingClientRect();
    const place = Math.min(STEPS - 1, Math.max(0, Math.floor((clientX - left) / width * STEPS)));
    const text = describe(place);
    if (text) at(chart.replace("chart", "point")).textContent = text;
  };
  for (const event of ["pointermove", "pointerdown"]) at(chart).addEventListener(event, point);
}

/** Bars above a line for what was granted, and below it for what was denied, what was not denied in shadow mode, and for
    errors; behind them a band where a server was unavailable. The highest of each side, and where the line is, as a share from
    above. */
function mirrored(svg, steps, errors = [], outages = []) {
  const {width, height} = svg.viewBox.baseVal;
  const error = (place) => errors[place]?.[0] ?? 0;
  const grantedMost = Math.max(0, ...steps.map((step) => step[1]));
  const deniedMost = Math.max(0, ...steps.map(([denied, , shadowed = 0], place) => denied + shadowed + error(place)));
  const scale = (height - 2) / Math.max(1, deniedMost + grantedMost);
  const line = 1 + grantedMost * scale;
  const wide = width / Math.max(1, steps.length);
  const bars = steps.flatMap(([denied, granted, shadowed = 0], place) => {
    const bar = {x: place * wide + wide * 0.1, width: wide * 0.8};
    const below = (kind, count, above) =>
      count && draw("rect", {...bar, class: kind, y: line + above * scale, height: count * scale});
    return [
      outages[place]?.[0] && draw("rect", {x: place * wide, width: wide, class: "outage", y: 0, height}),
      granted && draw("rect", {...bar, class: "granted", y: line - granted * scale, height: granted * scale}),
      below("denied", denied, 0),
      below("shadowed", shadowed, denied),
      below("errors", error(place), denied + shadowed),
    ].filter(Boolean);
  });
  svg.replaceChildren(...bars, draw("line", {class: "base", x1: 0, x2: width, y1: line, y2: line}));
  return {grantedMost, deniedMost, line: line / height};
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
  mark(svg, LINES.map((line) => [took(line), y(line) / height]));
}

// -- What is shown again and again -----------------------------------------------------------------------------------

function show(state) {
  shownAt = new Date();
  keyPrefix = state.prefix;
  at("version").textContent = state.version;
  at("token-form").hidden = !state.needs_token;
  showAbout(state);
  showDecisions(state);
  showUnmatched(state.unmatched);
  showSources(state.sources);
  showLatency(state.durations, state.step);
  showWaits(state.waits);
  showKeys("top", state.keys.denied, state.keys.barred, "No key was denied in this minute or the last.");
  showKeys("here", state.keys.here, state.keys.here ? "" : state.keys.barred, "None.");
  showWaiting(state.keys);
  showRules(state.rules);
  if (paused) return;
  const unavailable = state.servers.filter(({state: it}) => it === "unavailable");
  if (state.server === "unavailable" || unavailable.length > 0) {
    const which = unavailable.map(({address, reason, message}) => ` ${address}: ${message || reason}.`).join("");
    const all = unavailable.length < state.servers.length ? "One of the counting servers" : "The counting server";
    say(at("status"), `${all} is unavailable.${which} Each limit decides by its on_failure.`, true);
  } else if (state.refusals) {
    const {rate: failing, error} = state.refusals;
    say(at("status"), `${+failing.toPrecision(2)} requests per second fail: ${error || "the server refuses commands"}`, true);
  } else if (state.shadow_mode) {
    say(at("status"), "Shadow mode: everything is counted, nothing is denied.", true);
  } else {
    const byScript = state.module === "auto" && state.servers.some(({backend}) => backend === "script");
    say(at("status"), byScript ? "Running. The script decides: the counting server has not loaded the module."
      : state.server === "none" ? "Running, without a counting server." : "Running.");
  }
}

/** Which process this is, its servers, and its configuration. */
function showAbout({host, uptime, servers, taken_over: taken, configuration: {read, refused, hash, restart_keys: waiting}}) {
  const server = ({address, state: it, since, round_trip: trip, lacks, evicts}) =>
    `server ${address} is ${it}${it === "up" ? "" : ` since ${clock(new Date(since))}`}`
    + (trip === null ? "" : `, last reply after ${took(trip)}`)
    + (lacks.length > 0 ? `, refuses ${lacks.join(", ")}` : "")
    + (evicts ? `, evicts keys (${evicts})` : "");
  const about = [`${host}, up for ${span(uptime)}`, ...servers.map(server),
    ...taken > 0 ? [`the module took over ${amount(taken, "key")} of the script`] : [], `configuration ${hash} read ${ago(read)}`,
    ...waiting.length > 0 ? [`after a restart, other values of ${waiting.join(", ")} take effect`] : []];
  at("about").textContent = `${about.join("; ")}.`;
  at("refused").hidden = refused === null;
  say(at("refused"), refused === null ? "" : `The configuration of ${clock(new Date(refused.read))} is refused`
    + `${refused.error ? `: ${refused.error}` : ""}. The one in force was read at ${clock(new Date(read))}.`, true);
}

let drawn = null;

onPoint("decisions-chart", (place) => {
  if (drawn === null) return "";
  const {all, errors, outages, step} = drawn;
  const [denied, granted, shadowed] = all[place];
  const when = clock(new Date(shownAt - (STEPS - 1 - place) * step));
  const parts = [[granted, "granted"], [denied, "denied"], ...shadowed ? [[shadowed, "not denied in shadow mode"]] : [],
                 [errors[place][0], "without a decision"]];
  return `${when}, ${duration(step)}: `
    + parts.map(([count, what]) => `${number(count)} ${what} (${rate(count, step / 1000)})`).join(", ")
    + (outages[place][0] ? "; a counting server was unavailable." : ".");
});

function showDecisions({decisions, errors, outages, step, rules: inForce}) {
  const {rules, count} = decisions;
  const all = padded(decisions.all, 3);
  drawn = {all, errors: padded(errors, 1), outages: padded(outages, 1), step};
  const inShadow = new Set(inForce.rules.filter((rule) => rule.shadow_mode).map(nameOf));
  const [denied, granted, shadowed] = [0, 1, 2].map((kind) => sum(all.map((one) => one[kind])));
  const failed = sum(drawn.errors.map(([count]) => count));
  at("granted").textContent = number(granted);
  at("denied").textContent = number(denied);
  at("shadowed").textContent = number(shadowed);
  at("errors").textContent = number(failed);
  const {grantedMost, deniedMost, line} = mirrored(at("decisions-chart"), all, drawn.errors, drawn.outages);
  const second = step / 1000;
  mark(at("decisions-chart"), [[0, line], [grantedMost && rate(grantedMost, second), 0],
                               [deniedMost && rate(deniedMost, second), 1]].filter(([text], place) => text || place === 0));
  at("decisions-chart").setAttribute("aria-label",
    `Granted ${number(granted)} and denied ${number(denied)} in ${RANGES[range].words}`
    + (failed ? `, ${number(failed)} without a decision` : "")
    + (drawn.outages.some(([unavailable]) => unavailable) ? "; a counting server was unavailable" : ""));
  at("decisions-scale").textContent = `Each bar is ${duration(step)}.`;
  rows(at("by-rule"), folded("by-rule", rules), nameOf, (rule) => {
    const seen = {viewBox: "0 0 240 30", preserveAspectRatio: "none", "aria-hidden": "true"};
    const chart = draw("svg", {class: "course", ...seen});
    return make("tr", {}, ruleHeading(rule), numberCell(), numberCell(), numberCell(), numberCell(),
      make("td", {class: "wide"}, chart));
  }, (row, rule) => {
    row.querySelector(".quiet").textContent =
      inShadow.has(nameOf(rule)) ? `${rule.domain}, in shadow mode: denies nothing` : rule.domain;
    [1, 0, 2].forEach((kind, place) => {
      row.cells[place + 1].textContent = number(sum(rule.steps.map((one) => one[kind])));
    });
    row.cells[4].textContent = rate(rule.last_minute, 60);
    mirrored(row.querySelector("svg"), rule.steps);
  });
  at("by-rule-note").textContent = rules.length === 0 && at("filter").value ? "No such rule decided anything."
    : rules.length === 0 ? `No rule has decided anything in ${RANGES[range].words}.`
    : count > rules.length ? `And ${amount(count - rules.length, "rule")} more.` : "";
}

/** Traffic that no limit was found for, by reason. */
function showUnmatched(steps) {
  const reasons = ["of an unknown domain", "without a rule", "without a policy"];
  const counts = reasons.map((_, kind) => sum(padded(steps, 3).map((step) => step[kind])));
  at("unmatched").textContent = number(sum(counts));
  const parts = reasons.map((reason, kind) => [counts[kind], reason]).filter(([count]) => count > 0);
  at("unmatched-note").textContent = parts.length === 0 ? ""
    : `Granted because nothing limits them: ${parts.map(([count, reason]) => `${number(count)} ${reason}`).join(", ")}.`;
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
  at("failure").textContent = number(sources.find(({source}) => source === "failure").decisions);
}

let latencies = null;

onPoint("latency-chart", (place) => {
  if (latencies === null) return "";
  const {bounds, steps, step} = latencies;
  const counts = padded(steps, bounds.length + 1)[place];
  const [median, slowest] = [0.5, 0.99].map((share) => took(quantile(counts, bounds, share)));
  const when = clock(new Date(shownAt - (STEPS - 1 - place) * step));
  return `${when}: ${amount(sum(counts), "request")}`
    + (sum(counts) ? `, median ${median}, 99 % faster than ${slowest}.` : ".");
});

function showLatency({bounds, steps}, step) {
  latencies = {bounds, steps, step};
  const all = bounds.concat(Infinity).map((_, place) => sum((steps ?? []).map((counts) => counts[place])));
  const [median, slowest] = [0.5, 0.99].map((share) => quantile(all, bounds, share));
  at("median").textContent = took(median);
  at("slowest").textContent = took(slowest);
  ranged(at("latency-chart"), steps ?? [], bounds);
  at("latency-chart").setAttribute("aria-label", median === null ? `No requests in ${RANGES[range].words}`
    : `${amount(sum(all), "request")} in ${RANGES[range].words}: median ${took(median)}, 99 % faster than ${took(slowest)}`);
}

/** Requests that may wait for their turn: how many wait now, and how long those took that have ended. */
function showWaits({bounds, steps, now}) {
  const all = bounds.concat(Infinity).map((_, place) => sum((steps ?? []).map((counts) => counts[place])));
  const [median, slowest] = [0.5, 0.99].map((share) => quantile(all, bounds, share));
  const waited = (seconds) => seconds < 1 ? took(seconds) : span(seconds);
  const ended = median === null ? "" : ` ${amount(sum(all), "request")} that could wait ended in ${RANGES[range].words}:`
    + ` median ${waited(median)}, 99 % faster than ${waited(slowest)}.`;
  at("waits").textContent = `${amount(now, "request waits", "requests wait")} for a turn now.${ended}`;
}

/** Keys that requests wait for here. */
function showWaiting({waiting, barred}) {
  rows(at("waiting"), waiting ?? [], ({key}) => key, ({key}) =>
    make("tr", {}, make("th", {scope: "row"}, lookButton(key)), numberCell(), numberCell()),
  (row, {requests, longest}) => {
    row.cells[1].textContent = number(requests);
    row.cells[2].textContent = span(longest);
  });
  at("waiting-note").textContent = waiting === undefined ? barred : waiting.length === 0 ? "None." : "";
}

/** A button that looks a key up. */
function lookButton(key) {
  const look = make("button", {type: "button", class: "look", title: "Look this key up"}, key);
  look.addEventListener("click", () => {
    at("key").value = key;
    lookUp(key);
  });
  return look;
}

/** Keys with their denials in a table, or why they are hidden. */
function showKeys(table, keys, barred, none) {
  const denied = keys ?? [];
  const wanted = at("filter").value.toLowerCase();
  const shown = denied.filter(({key}) => key.toLowerCase().includes(wanted));
  rows(at(table), shown, ({database, key}) => `${database} ${key}`, ({database = 0, key}) => {
    const place = database === 0 ? [] : [make("span", {class: "quiet"}, `database ${database}`)];
    return make("tr", {}, make("th", {scope: "row"}, lookButton(key), ...place), numberCell(), numberCell());
  }, (row, {this_minute: now, last_minute: before}) => {
    row.cells[1].textContent = number(now);
    row.cells[2].textContent = number(before);
  });
  at(`${table}-note`).textContent = barred || (denied.length === 0 ? none : "");
}

function showRules({rules, count}) {
  const name = (rule) => JSON.stringify(rule);
  rows(at("rules"), folded("rules", rules), name, (rule) => {
    const lines = (texts) => texts.map((text) => make("div", {}, text));
    const nothing = make("div", {class: "nothing"}, "limit 0: denies every request");
    const modes = [["shadow_mode", "shadow mode: denies nothing"], ["quota_mode", "quota mode"]];
    const limits = rule.limits.map(({shown, limit, window, resolution, strict, block, record}) => [
      ...window ? [`${number(limit)} per ${duration(window)}`, `resolution ${duration(resolution)}`] : [shown],
      strict && "strict",
      block && `blocks for ${duration(block)}`, record && "records"].filter(Boolean).join(", "));
    const decided = rule.limits.map((limit) => `${limit.mode}; on failure: ${limit.on_failure}`);
    return make("tr", {}, ruleHeading(rule),
      make("td", {}, ...lines([...limits, ...rule.unlimited ? ["unlimited"] : []]),
        ...rule.limits.some(({limit}) => limit === 0) ? [nothing] : []),
      make("td", {}, ...lines([...new Set(decided), ...modes.filter(([mode]) => rule[mode]).map(([, text]) => text)])));
  }, () => {});
  at("rules-note").textContent = count === 0 ? (at("filter").value ? "There is no such rule." : "There are none.")
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
  const own = ++asked;
  let state;
  try {
    state = await ask(`/page/state?${new URLSearchParams({filter: at("filter").value, range})}`);
  } catch {
    if (own !== asked) return;
    const since = shownAt ? ` What is shown is from ${clock(shownAt)}.` : "";
    say(at("status"), `swlimitd does not answer.${since}`, true);
    return;
  }
  if (own === asked) show(state);
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

/** Shows what the server holds of a key; returns the sentence for it. */
async function load(key) {
  const own = ++looking;
  let [held, holders] = [null, null];
  try {
    const query = new URLSearchParams({key});
    held = await ask(`/v1/info?${query}`);
    if (held.holds !== null) holders = await ask(`/v1/holders?${query}`);
  } catch (error) {
    if (error.status !== 404) {
      at("held").hidden = true;
      throw error;
    }
  }
  if (own !== looking) return at("said").textContent; // another one was looked up meanwhile
  showHeld(key, held);
  showHolders(holders);
  if (holders) return `The server has ${amount(holders.length, "hold")} of this key.`;
  return held ? `The server holds ${amount(held.total, "unit")} of this key.` : "There is no such key on the server.";
}

function showHeld(key, held) {
  at("held").hidden = false;
  at("held-key").textContent = key;
  const blocked = held?.blocked_until > Date.now() ? `until ${new Date(held.blocked_until).toLocaleString()}` : "no";
  const hasEnd = Boolean(held?.until); // a budget's, or that of the last hold
  const facts = [];
  if (hasEnd) facts.push(["units", number(held.total)], ["until", new Date(held.until).toLocaleString()]);
  if (held?.window > 0) {
    facts.push(["units", number(held.total)], ["window", duration(held.window)],
      ["resolution", duration(held.resolution)]);
  }
  if (held && !hasEnd) facts.push(["blocked", blocked]);
  if (held) facts.push(["memory", amount(held.memory, "byte")]);
  at("held-facts").replaceChildren(...facts.flatMap(([name, fact]) => [make("dt", {}, name), make("dd", {}, fact)]));
  at("block").hidden = hasEnd;
  const counts = (held?.window ? held.counts : []).filter(([, units]) => units > 0);
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

/** Who holds units of the key that is shown, each to be freed; of a window, nobody. */
function showHolders(holders) {
  at("held-holds").hidden = holders === null;
  if (holders !== null) at("block").hidden = true;
  const cells = ({id, units, held_for: held, expires_after: left}) => {
    const free = make("button", {type: "button", title: `Free ${id}`}, "Free");
    free.addEventListener("click", () => change(async () => {
      const {released} = await ask("/v1/release", {key: ownKey(), id});
      return released > 0 ? "It is freed." : "It had ended.";
    }));
    const columns = [number(units), span(held / 1000), span(left / 1000)];
    return make("tr", {}, make("td", {}, id), ...columns.map((text) => make("td", {class: "number"}, text)),
      make("td", {}, free));
  };
  at("holders").replaceChildren(...(holders ?? []).map(cells));
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
at("filter").addEventListener("input", refresh);
for (const table of ["by-rule", "rules"]) {
  at(`${table}-more`).addEventListener("click", ({target}) => {
    target.setAttribute("aria-expanded", target.getAttribute("aria-expanded") === "false");
    refresh();
  });
}
const ranges = document.querySelectorAll("[data-range]");
/** Show another part of the past. */
function choose(chosen) {
  range = chosen;
  for (const button of ranges) button.setAttribute("aria-pressed", button.dataset.range === range);
  for (const axis of document.querySelectorAll(".axis")) {
    axis.replaceChildren(...RANGES[range].axis.map((text) => make("span", {}, text)));
  }
}
for (const button of ranges) {
  button.addEventListener("click", () => {
    choose(button.dataset.range);
    refresh();
  });
}
choose(range);
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
