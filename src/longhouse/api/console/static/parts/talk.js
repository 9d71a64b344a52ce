// A talk: what a session's events add up to, as a list of entries. No element is made here, and nothing is asked for.

/**
 * A talk without events. `entries` are in the order of the journal; whoever draws them takes `changed`, the keys of
 * those that are new or different since it looked last, and empties it.
 */
export function newTalk(id) {
  return {
    id,
    agent: "", version: null, owner: null, user: null, side: "root", parent: null,
    head: 0,
    entries: [],
    changed: new Set(),
    turn: null,
    draft: null,
    /** Why the model is asked again, until it answers. */
    retry: "",
    /** The title that the model gave. */
    title: "",
    byKey: new Map(),
    calls: new Map(),
    finishing: new Set(),
    prompts: new Map(),
    runs: new Map(),
    lastReply: "",
  };
}

/** Adds one event as `follow` hands it over: `{event, data}`. An event that the talk has already is left out. */
export function add(talk, { event: name, data }) {
  if (name === "delta") return addDelta(talk, data);
  if (name === "delta.snapshot") return joinDraft(talk, data);
  if (name.startsWith("subagent_")) return addOfAgent(talk, name, data);
  if (name === "retrying" || name === "paused") talk.retry = data.reason ?? "";
  if (!data?.event || data.seq <= talk.head) return undefined;
  talk.head = data.seq;
  if (name !== "Spent") talk.retry = "";
  return FACTS[name]?.(talk, data.event, data);
}

const FACTS = {
  Opened(talk, event) {
    const { agent, version, owner, user = null, side = "root" } = event;
    Object.assign(talk, { agent, version, owner, user, side });
  },
  Prompted(talk, event, { seq, at, trace_id: trace }) {
    if (event.prior?.length) {
      push(talk, { kind: "prior", key: `h${seq}`, at, messages: event.prior });
    }
    if (event.reply_to) talk.parent = event.reply_to.session;
    const isWaiting = !event.aside;
    const sender = event.sender ?? "user";
    const prompt = { kind: "prompt", key: `p${seq}`, at, trace, sender, parts: partsOf(event.content), isAside: Boolean(event.aside), isWaiting };
    talk.prompts.set(seq, prompt);
    push(talk, prompt);
  },
  Started(talk, event, { at, trace_id: trace }) {
    const prompt = talk.prompts.get(event.prompt);
    if (prompt) change(talk, prompt, { isWaiting: false });
    talk.version = event.version;
    talk.turn = { trace, beganAt: at, endedAt: null, steps: 0, tokens: 0, waited: 0, waitsSince: null, inChat: Boolean(event.approve_in_chat), state: "busy" };
    talk.lastReply = "";
  },
  Replied(talk, event, { seq, at }) {
    dropDraft(talk);
    readAsides(talk);
    const said = [...(event.text ?? "")].slice(0, event.said ?? 0).join("");
    countStep(talk, event.usage);
    const thought = [event.reasoning, event.thought, unsaid(event, said)].filter((one) => one?.trim()).join("\n\n");
    if (thought) push(talk, { kind: "thought", key: `t${seq}`, at, text: thought });
    if (said.trim()) push(talk, { kind: "reply", key: `r${seq}`, at, text: said });
    if (event.problem) push(talk, { kind: "note", key: `n${seq}`, at, tone: "wait", text: "The reply could not be read; the model is asked again.", more: event.problem });
    talk.lastReply = said.trim();
  },
  Called(talk, event, { seq, at }) {
    if (event.role === "finishes") {
      talk.finishing.add(event.call);
      return;
    }
    if (event.role === "reasons") {
      push(talk, { kind: "thought", key: `t${seq}`, at, text: event.arguments });
      return;
    }
    const call = callEntry(event, { key: `c${seq}`, at });
    talk.calls.set(event.call, call);
    push(talk, call);
    countWaiting(talk, at);
  },
  Returned(talk, event, { seq, at }) {
    const isFault = event.outcome?.type === "Fault";
    if (isFault && talk.finishing.has(event.call)) {
      push(talk, { kind: "note", key: `n${seq}`, at, tone: "bad", text: "The answer was refused; the model is told why.", more: event.outcome.message });
    }
    const call = talk.calls.get(event.call);
    if (!call) return;
    change(talk, call, {
      endedAt: at,
      status: event.by === "memory" ? "memory" : isFault ? "error" : "ok",
      result: isFault ? event.outcome.message : event.outcome?.content ?? "",
      sources: sourcesOf(event),
      isUncertain: false,
    });
    countWaiting(talk, at);
  },
  Decided(talk, event, { seq, at }) {
    if (event.call.startsWith(LOST_STEP)) {
      decideStep(talk, event, { seq, at });
      return;
    }
    const call = talk.calls.get(event.call);
    if (!call) return;
    const { decision, by, comment = "", via = "" } = event;
    if (decision === "unknown") {
      change(talk, call, by.startsWith("probe:") ? { isProbed: false } : { isUncertain: true, doubt: comment, isProbed: event.probed === true });
      return;
    }
    const approveBy = decision === "approve" ? null : call.approveBy;
    change(talk, call, { isUncertain: false, approveBy, decision: { decision, by, comment, via, at }, runsSince: at });
    countWaiting(talk, at);
  },
  Condensed(talk, event, { seq, at }) {
    push(talk, { kind: "note", key: `n${seq}`, at, text: "What came before was summed up for the model.", more: event.summary });
  },
  Spent(talk, event, { seq, at }) {
    // The tokens of a title are no retry.
    if (typeof event.title === "string") {
      talk.title = event.title;
      return;
    }
    dropDraft(talk);
    push(talk, { kind: "note", key: `n${seq}`, at, tone: "wait", text: `A step was tried again${event.reason ? `: ${event.reason}` : "."}` });
  },
  Stored(talk, event, { seq, at }) {
    const file = { id: String(seq), path: event.path, size: event.size ?? 0, mediaType: event.media_type };
    const call = talk.calls.get(event.call);
    if (call) change(talk, call, { files: [...call.files, file] });
    else push(talk, { kind: "file", key: `f${seq}`, at, file });
  },
  Resumed(talk, event, { seq, at }) {
    dropDraft(talk);
    const isLoss = event.previous !== event.worker && !event.previous.endsWith(" (interrupted)");
    const text = isLoss ? "A worker was lost; another one took over." : "The server was restarted; the work goes on.";
    push(talk, { kind: "note", key: `n${seq}`, at, tone: "busy", text, more: `${event.previous} → ${event.worker}` });
    for (const call of callsToRun(talk)) {
      const isDoubtful = call.effect === "once" && !(event.unbegun ?? []).includes(call.call);
      change(talk, call, { lost: call.lost + (isLoss && !event.excused ? 1 : 0), isUncertain: isDoubtful });
    }
    for (const call of talk.calls.values()) if (call.isUncertain) change(talk, call, { isProbed: (event.probed ?? []).includes(call.call) });
    countWaiting(talk, at);
  },
  Finished(talk, event, { seq, at }) {
    endTurn(talk, at, "good");
    const isSaid = event.answer.trim() === talk.lastReply;
    const facts = { ...talk.turn };
    const last = talk.entries.findLast((one) => one.kind === "reply");
    if (isSaid && last) change(talk, last, { isAnswer: true, facts });
    else push(talk, { kind: "reply", key: `r${seq}`, at, text: event.answer, isAnswer: true, facts });
  },
  Failed(talk, event, { seq, at }) {
    keepDraft(talk, seq, at);
    endTurn(talk, at, "bad");
    push(talk, { kind: "failure", key: `e${seq}`, at, text: event.reason, code: event.code ?? "failed" });
  },
  Cancelled(talk, event, { seq, at }) {
    const waiting = [...talk.prompts.values()].find((one) => one.trace === event.trace && one.isWaiting);
    if (waiting) {
      change(talk, waiting, { isWaiting: false, isCancelled: true });
      return;
    }
    keepDraft(talk, seq, at);
    endTurn(talk, at, "quiet");
    push(talk, { kind: "note", key: `n${seq}`, at, text: "Stopped." });
  },
};

function push(talk, entry) {
  entry.nth = talk.entries.length;
  talk.entries.push(entry);
  talk.byKey.set(entry.key, entry);
  talk.changed.add(entry.key);
}

/** Changes an entry, or something within one: `top` names the entry that is drawn anew. */
function change(talk, entry, values) {
  Object.assign(entry, values);
  talk.changed.add(entry.top ?? entry.key);
}

/** As on the server: the doubt about a call that took three workers down. */
const TAKES_WORKERS = "it was interrupted three times by the loss of its worker";

/** A worker that is lost has not begun with more than these; as `calls_to_run` of the server says it. */
function callsToRun(talk) {
  const due = [...talk.calls.values()].filter((call) => call.status === "open" && call.callKind === "tool" && !call.isUncertain && !call.approveBy);
  const suspect = due.find((call) => call.lost >= MOST_LOST - 1);
  return suspect ? [suspect] : due;
}

/** As on the server: so begin the ids of questions about steps that lost their workers, which are no calls. */
const LOST_STEP = "step-";

function decideStep(talk, { call: id, decision }, { seq, at }) {
  const step = talk.calls.get(id);
  if (decision === "unknown") {
    const asked = callEntry({ call: id, tool: "", call_kind: "step" }, { key: `c${seq}`, at });
    talk.calls.set(id, asked);
    push(talk, asked);
  } else if (step) endStep(talk, step, at, decision === "give_up" ? "The step was given up." : "The step is tried again.");
  countWaiting(talk, at);
}

/** What is left of a question about a step: a line that tells its end. */
function endStep(talk, step, at, text) {
  change(talk, step, { kind: "note", tone: "wait", text, status: "ok", endedAt: at });
}

/** As on the server: after so many lost workers in one step its calls run one by one. */
const MOST_LOST = 3;

/** What was written beside an open call is read with the step after it. */
function readAsides(talk) {
  for (const prompt of talk.prompts.values()) if (prompt.isAside && !prompt.isRead) change(talk, prompt, { isRead: true });
}

function callEntry(event, { key, at, top = null }) {
  const isQuestion = event.call_kind === "ask";
  return {
    kind: isQuestion ? "question" : "call",
    key, top, at,
    call: event.call,
    tool: event.tool,
    callKind: event.call_kind ?? "tool",
    effect: event.effect ?? "read",
    lost: 0,
    isAgent: event.call_kind === "agent" || (event.call_kind !== "client" && agentOf(event.tool) !== null),
    arguments: event.arguments ?? "",
    text: event.question ?? "",
    approveBy: event.approve_by ?? null,
    deadline: event.deadline ?? null,
    decision: null,
    isUncertain: false,
    doubt: "",
    runsSince: at,
    endedAt: null,
    status: "open",
    result: null,
    files: [],
    sources: [],
    child: null,
  };
}

/** The agent that a tool stands for, such as `agent.analytic`. */
function agentOf(tool) {
  return /^agent[._]/.test(tool) ? tool.slice("agent.".length) : null;
}

/** Texts and images of a prompt: `{text}` and `{image}`, whose value is the digest of a stored image. */
function partsOf(content) {
  return (content ?? []).flatMap((one) => (typeof one === "string" ? [{ text: one }] : one.map(partOf))).filter(Boolean);
}

function partOf(part) {
  if (part.type === "text") return { text: part.text };
  const address = part.image_url?.url ?? "";
  return { image: address.replace(/^longhouse-file:/, "") };
}

/** What a reply thought in plain text without saying it. JSON is the form of a reply, not a thought. */
function unsaid(event, said) {
  const rest = (event.text ?? "").slice(said.length).trim();
  return event.phase && !event.thought && !rest.startsWith("{") ? rest : "";
}

function sourcesOf(event) {
  const found = { ...event.writes?.sources, ...event.adds?.sources };
  return Object.entries(found).map(([url, source]) => ({ url, title: source?.title || url, number: source?.number ?? null }));
}

function countStep(talk, usage) {
  if (!talk.turn) return;
  talk.turn.steps += 1;
  talk.turn.tokens += usage?.total_tokens || (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
}

/** Counts the seconds in which something waited for a person: they are nobody's work. */
function countWaiting(talk, at) {
  const { turn } = talk;
  if (!turn) return;
  const waits = openQuestions(talk).length > 0;
  if (waits) turn.waitsSince ??= at;
  else if (turn.waitsSince) {
    turn.waited += (new Date(at) - new Date(turn.waitsSince)) / 1000;
    turn.waitsSince = null;
  }
}

/** Ends the turn: calls that are open by now get no outcome any more, except what was left at work in other agents. */
function endTurn(talk, at, state) {
  dropDraft(talk);
  readAsides(talk);
  if (talk.turn) Object.assign(talk.turn, { endedAt: at, state });
  for (const call of talk.calls.values()) {
    if (call.status !== "open") continue;
    if (call.callKind === "step") endStep(talk, call, at, "The step was not tried again.");
    else change(talk, call, { status: "stopped", endedAt: at, isUncertain: false });
  }
}

/* What is being written */

function addDelta(talk, { after, fence, kind, offset, text }) {
  const draft = draftOf(talk, after, fence);
  if (!draft) return;
  const field = kind === "reasoning" ? "reasoning" : "content";
  const had = draft.points[field];
  // Behind a gap nothing is guessed: the finished reply brings the text.
  if (offset > had) return;
  talk.retry = "";
  if (offset < had) draft[field] = [...draft[field]].slice(0, offset).join("");
  draft[field] += text;
  draft.points[field] = offset + pointsIn(text);
}

/** The server counts characters, a string of the browser counts some of them twice. */
function pointsIn(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}

function joinDraft(talk, { after, fence, content = "", reasoning = "" }) {
  const draft = draftOf(talk, after, fence);
  if (draft) Object.assign(draft, { content, reasoning, points: { content: pointsIn(content), reasoning: pointsIn(reasoning) } });
}

/** The draft of this step; null for a step whose reply is known already. */
function draftOf(talk, after, fence) {
  const now = talk.draft;
  if (now && now.after === after && now.fence === fence) return now;
  if (after < talk.head && talk.entries.some((one) => Number(one.key.slice(1)) > after && one.kind === "reply")) return null;
  talk.draft = { after, fence, content: "", reasoning: "", points: { content: 0, reasoning: 0 } };
  return talk.draft;
}

/** What somebody has read already stays in sight when the turn ends before its reply; the journal does not have it. */
function keepDraft(talk, seq, at) {
  const text = talk.draft?.content ?? "";
  if (text.trim()) push(talk, { kind: "unkept", key: `u${seq}`, at, text });
}

function dropDraft(talk) {
  talk.draft = null;
}

/* Sub-agents: a run is one task of one sub-agent, within the call that asked for it. */

function addOfAgent(talk, name, data) {
  const at = new Date(data.timestamp * 1000).toISOString();
  if (name === "subagent_delegation") {
    beginRun(talk, data, at);
    return;
  }
  const run = runOf(talk, data.session_id) ?? beginRun(talk, { ...data, task: "" }, at);
  ON_RUN[name]?.(talk, run, data, at);
}

/** The run that a session works at: its tasks wait for each other, so the first that has not ended. */
function runOf(talk, session) {
  const runs = talk.runs.get(session) ?? [];
  return runs.find((one) => one.status === "open") ?? runs.at(-1);
}

const ON_RUN = {
  subagent_assistant_with_tools(talk, run, { content }, at) {
    if (content.trim()) addToRun(talk, run, { kind: "reply", at, text: content });
  },
  subagent_tool(talk, run, { tool, arguments: given, call_id: call }, at) {
    const entry = callEntry({ call, tool, arguments: given }, { key: "", at });
    run.calls.set(call, entry);
    addToRun(talk, run, entry);
  },
  subagent_tool_result(talk, run, { tool_call_id: call, content, by }, at) {
    const entry = run.calls.get(call);
    if (!entry) return;
    const isFault = content.startsWith("Error: ");
    change(talk, entry, { endedAt: at, status: by === "memory" ? "memory" : isFault ? "error" : "ok", result: content });
  },
  subagent_completion(talk, run, { response, status }, at) {
    Object.assign(run, { status: { completed: "ok", failed: "error" }[status] ?? "stopped", response, endedAt: at });
    for (const call of run.calls.values()) if (call.status === "open") Object.assign(call, { status: "stopped", endedAt: at });
    talk.changed.add(run.top);
  },
};

function addToRun(talk, run, entry) {
  run.entries.push(Object.assign(entry, { key: `${run.top}/${run.session}/${run.entries.length}`, top: run.top }));
  talk.changed.add(run.top);
}

function beginRun(talk, { session_id: session, agent, task, depth }, at) {
  const run = { session, agent, task, depth, at, endedAt: null, status: "open", response: null, entries: [], calls: new Map() };
  const call = callFor(talk, run) ?? orphan(talk, run, at);
  run.top = call.top ?? call.key;
  change(talk, call, { child: run });
  talk.runs.set(session, [...(talk.runs.get(session) ?? []), run]);
  return run;
}

/** The call that asked for this run: its agent and its task say which, or else its agent alone. */
function callFor(talk, run) {
  const makers = run.depth > 1 ? [...talk.runs.values()].flat().filter((one) => one.depth === run.depth - 1) : [talk];
  const waiting = makers.flatMap((one) => [...one.calls.values()]).filter((call) => !call.child && agentOf(call.tool) === run.agent);
  return waiting.find((call) => run.task && run.task.startsWith(taskOf(call))) ?? waiting[0];
}

function taskOf(call) {
  try {
    return JSON.parse(call.arguments).task ?? "\u0000";
  } catch {
    return "\u0000";
  }
}

function orphan(talk, run, at) {
  const key = `a${run.session}${talk.entries.length}`;
  const call = callEntry({ call: key, tool: `agent.${run.agent}`, arguments: "" }, { key, at });
  push(talk, call);
  return call;
}

/* What the talk says of itself */

/** Is there work to stop? */
export function isRunning(talk) {
  const waits = [...talk.prompts.values()].some((one) => one.isWaiting);
  return waits || Boolean(talk.turn && !talk.turn.endedAt);
}

/** The session's own open questions, approvals, unknown outcomes and lost steps, oldest first. */
export function openQuestions(talk) {
  return [...talk.calls.values()].filter((call) => kindOfQuestion(call));
}

/** What an open call asks of a person, or null. */
export function kindOfQuestion(call) {
  if (call.status !== "open") return null;
  if (call.callKind === "step") return "worker_lost";
  if (call.callKind === "client") return "client";
  if (call.isUncertain && call.effect !== "once" && call.doubt === TAKES_WORKERS) return "worker_lost";
  if (call.isUncertain) return call.isProbed ? null : "unknown_outcome";
  if (call.kind === "question") return "clarification";
  return call.approveBy && !call.decision ? "approval" : null;
}

/** Does the agent think: is a turn under way of which nothing is to be seen? */
export function isThinking(talk) {
  if (!isRunning(talk) || talk.draft?.content || talk.draft?.reasoning) return false;
  return ![...talk.calls.values()].some((call) => call.status === "open");
}

/** Since when the talk works at what it works at: the turn's begin, or that of the message that waits for a worker. */
export function worksSince(talk) {
  if (talk.turn && !talk.turn.endedAt) return talk.turn.beganAt;
  return [...talk.prompts.values()].find((one) => one.isWaiting)?.at ?? new Date().toISOString();
}

/** Adds what the server answered to a message that decides nothing; the journal has it not. */
export function addAside(talk, text) {
  push(talk, { kind: "aside", key: `s${talk.entries.length}`, at: new Date().toISOString(), text });
}

/** The title that the model gave, or the first words that were said. */
export function titleOf(talk) {
  if (talk.title) return talk.title;
  const first = talk.entries.find((one) => one.kind === "prompt");
  return first?.parts.find((part) => part.text?.trim())?.text ?? "";
}
