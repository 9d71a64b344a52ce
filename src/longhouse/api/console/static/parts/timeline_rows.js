// A session's timeline as rows of a waterfall: turns, steps, calls, sub-agents beneath the calls that asked them,
// and the moments in which another worker took over.

import { clock, duration, plainLine } from "../format.js";
import { inShort } from "./tool_card.js";

const PERSON = new Set(["clarification", "approval", "unknown_outcome", "worker_lost", "client"]);
const ms = (moment) => (moment ? Date.parse(moment) : null);

/**
 * All rows of a timeline, with `folded` keys closed: `{key, level, kind, label, text, from, to, isOpen, bars, ...}`;
 * `bars`: `{look, from, to}`. `now` ends what has not ended. Texts are made when they are read: of thousands few are.
 */
export function rowsOf(timeline, folded, now) {
  const builder = new Builder(timeline, folded, now);
  builder.session(timeline, timeline.turns, 1, { withTurns: true });
  return builder.rows;
}

class Builder {
  constructor(timeline, folded, now) {
    Object.assign(this, { timeline, folded, now, rows: [] });
    this.children = timeline.children ?? {};
    this.tasks = tasksOf(timeline);
  }

  session(session, turns, level, { withTurns }) {
    for (const turn of turns) {
      const key = `${session.session_id} turn ${turn.n}`;
      if (withTurns) this.add(this.turnRow(session, turn, key, level));
      if (withTurns && this.folded.has(key)) continue;
      this.turn(session, turn, withTurns ? level + 1 : level);
    }
  }

  add(row) {
    this.rows.push(row);
    return row;
  }

  turnRow(session, turn, key, level) {
    const look = ["turn", this.folded.has(key) && "folded", turn.state === "FAILED" && "failed"]
      .filter(Boolean)
      .join(" ");
    const [from, to] = [ms(turn.began_at), ms(turn.ended_at) ?? this.now];
    const waits = turn.waits.map((wait) => ({
      look: waitLook(wait.for),
      from: ms(wait.from),
      to: ms(wait.to) ?? this.now,
      for: wait.for,
    }));
    return {
      key,
      level,
      kind: "turn",
      label: level > 1 ? `${session.agent} · turn ${turn.n}` : `Turn ${turn.n}`,
      get text() {
        return plainLine(turn.task, 120);
      },
      from,
      to,
      isOpen: !turn.ended_at,
      state: turn.state,
      canFold: true,
      isFolded: this.folded.has(key),
      bars: [{ look, from, to }, ...waits],
      session,
      turn,
    };
  }

  turn(session, turn, level) {
    // First the takeovers: a step that begins with one follows it.
    const items = [
      ...turn.takeovers.map((one, nth) => ({
        at: ms(one.at),
        show: () => this.takeover(session, turn, one, nth, level),
      })),
      ...turn.steps.map((step) => ({ at: ms(step.began_at), show: () => this.step(session, turn, step, level) })),
    ];
    for (const item of items.sort((one, other) => one.at - other.at)) item.show();
    this.thinking(session, turn, level);
  }

  step(session, turn, step, level) {
    const key = `${session.session_id} step ${step.n}`;
    const [from, to] = [ms(step.began_at), ms(step.replied_at ?? step.ended_at)];
    const retries = step.retries.map((retry) => ({ look: "retry-mark", from: ms(retry.at), to: ms(retry.at) }));
    const waits = turn.waits.filter(
      (wait) => wait.for === "retry" && ms(wait.from) < to && (ms(wait.to) ?? this.now) > from,
    );
    this.add({
      key,
      level,
      kind: "step",
      label: `Step ${step.n}`,
      get text() {
        return plainLine(step.text, 100);
      },
      from,
      to,
      isOpen: false,
      canFold: step.calls.length > 0,
      isFolded: this.folded.has(key),
      bars: [
        { look: "model", from, to },
        ...waits.map((wait) => ({ look: "retry", from: ms(wait.from), to: Math.min(to, ms(wait.to) ?? this.now) })),
        ...retries,
      ],
      session,
      turn,
      step,
    });
    if (this.folded.has(key)) return;
    for (const call of step.calls) this.call(session, turn, step, call, level + 1);
  }

  call(session, turn, step, call, level) {
    const key = `${session.session_id} call ${call.call_id}`;
    const child = call.child ? this.children[call.child] : null;
    const turns = this.tasks.get(key) ?? [];
    const [from, to] = [ms(call.began_at), ms(call.ended_at) ?? this.now];
    this.add({
      key,
      level,
      kind: call.child ? "agent" : "call",
      label: plainLine(child?.agent ?? call.tool, 60),
      get text() {
        return inShort(call.arguments, 100);
      },
      from,
      to,
      isOpen: !call.ended_at,
      status: call.status,
      waiting: call.waiting,
      canFold: turns.length > 0,
      isFolded: this.folded.has(key),
      bars: this.callBars(turn, call, turns, from, to),
      session,
      turn,
      step,
      call,
    });
    if (turns.length && !this.folded.has(key)) this.session(child, turns, level + 1, { withTurns: turns.length > 1 });
  }

  callBars(turn, call, turns, from, to) {
    if (call.child) {
      // An agent that works in the background goes on after its call has returned.
      const until = Math.max(to, ...turns.map((one) => ms(one.ended_at) ?? this.now));
      return [{ look: call.status === "error" ? "agent failed" : "agent", from, to: until }];
    }
    const waits = turn.waits
      .filter((wait) => PERSON.has(wait.for))
      .map((wait) => [Math.max(from, ms(wait.from)), Math.min(to, ms(wait.to) ?? this.now)])
      .filter(([begin, end]) => end > begin);
    const look = { error: "tool failed", memory: "tool memory" }[call.status] ?? "tool";
    return [
      { look: call.ended_at ? look : `${look} open`, from, to },
      ...waits.map(([begin, end]) => ({ look: "person", from: begin, to: end })),
    ];
  }

  takeover(session, turn, one, nth, level) {
    const to = ms(one.at);
    const from = to - (one.seconds ?? 0) * 1000;
    this.add({
      key: `${session.session_id} takeover ${turn.n} ${nth}`,
      level,
      kind: "takeover",
      label: takeoverWords(one),
      text: "",
      from,
      to,
      isOpen: false,
      isLoss: one.is_loss,
      bars: [{ look: one.is_loss ? "lost" : "handed", from, to }],
      session,
      turn,
      takeover: one,
    });
  }

  /** What the model is at, of which the journal holds nothing yet. */
  thinking(session, turn, level) {
    const isWaiting = turn.waits.some((wait) => !wait.to);
    const hasOpen = turn.steps.some((step) => step.calls.some((call) => !call.ended_at));
    if (turn.ended_at || isWaiting || hasOpen) return;
    const from = Math.max(
      ms(turn.began_at),
      ...turn.steps.map((step) => ms(step.ended_at) ?? 0),
      ...turn.takeovers.map((one) => ms(one.at)),
    );
    this.add({
      key: `${session.session_id} thinking`,
      level,
      kind: "step",
      label: "Working",
      text: "the model writes",
      from,
      to: this.now,
      isOpen: true,
      bars: [{ look: "model open", from, to: this.now }],
      session,
      turn,
    });
  }
}

function waitLook(reason) {
  if (PERSON.has(reason)) return "person";
  return reason === "retry" ? "retry" : "agent-wait";
}

/** Such as `Worker lost 12:03:11, taken over 0.6 s later`. */
export function takeoverWords({ at, seconds, is_loss: isLoss }) {
  if (!isLoss) return `Handed over ${clock(at)}`;
  if (seconds === null) return `Worker lost, taken over ${clock(at)}`;
  const later = seconds < 10 ? `${seconds.toFixed(1)} s` : duration(seconds);
  return `Worker lost ${clock(Date.parse(at) - seconds * 1000)}, taken over ${later} later`;
}

const sessionsOf = (timeline) => [timeline, ...Object.values(timeline.children ?? {})];

/** Call → the turns of the sub-agent that it began, which takes its tasks in the order in which they were given. */
function tasksOf(timeline) {
  const asked = new Map();
  for (const session of sessionsOf(timeline)) {
    for (const call of callsOf(session)) {
      if (!call.child) continue;
      const key = `${session.session_id} call ${call.call_id}`;
      asked.set(call.child, [...(asked.get(call.child) ?? []), { key, at: ms(call.began_at) }]);
    }
  }
  const tasks = new Map();
  for (const [child, calls] of asked) {
    const turns = [...(timeline.children?.[child]?.turns ?? [])];
    calls.sort((one, other) => one.at - other.at);
    for (const { key, at } of calls) {
      const nth = turns.findIndex((turn) => ms(turn.began_at) >= at);
      tasks.set(key, nth < 0 ? [] : turns.splice(nth, 1));
    }
    // What nobody in sight asked for stands with the last one who asked anything.
    if (turns.length) tasks.get(calls.at(-1).key).push(...turns);
  }
  return tasks;
}

function* callsOf(session) {
  for (const turn of session.turns) for (const step of turn.steps) yield* step.calls;
}

/** The times in which something worked, in the whole tree: models, tools, and the moments of a takeover. */
export function workOf(timeline, now) {
  const spans = [];
  for (const session of sessionsOf(timeline)) {
    for (const turn of session.turns) {
      const waits = turn.waits.map((wait) => [ms(wait.from), ms(wait.to) ?? now]);
      const put = (from, to) => spans.push(...withoutWaits(from, to, waits));
      spans.push([ms(turn.began_at), ms(turn.began_at)]);
      if (turn.ended_at) spans.push([ms(turn.ended_at), ms(turn.ended_at)]);
      for (const step of turn.steps) {
        put(ms(step.began_at), ms(step.replied_at ?? step.began_at));
        for (const call of step.calls) put(ms(call.began_at), ms(call.ended_at) ?? now);
      }
      for (const one of turn.takeovers) spans.push([ms(one.at) - Math.min(one.seconds ?? 0, 60) * 1000, ms(one.at)]);
      if (!turn.ended_at && !turn.waits.some((wait) => !wait.to)) spans.push([lastOf(turn), now]);
    }
  }
  return spans;
}

const lastOf = (turn) => Math.max(ms(turn.began_at), ...turn.steps.map((step) => ms(step.ended_at ?? step.replied_at)));

function withoutWaits(from, to, waits) {
  let left = [[from, to]];
  for (const [begin, end] of waits) {
    left = left.flatMap(([one, other]) =>
      end <= one || begin >= other
        ? [[one, other]]
        : [
            [one, begin],
            [end, other],
          ].filter(([low, high]) => high > low),
    );
  }
  return left;
}

/** Why nothing worked from one moment to another: what was waited for, or that nobody asked for anything. */
export function whyIdle(timeline, from, to, now) {
  for (const session of sessionsOf(timeline)) {
    for (const turn of session.turns) {
      const wait = turn.waits.find(
        (one) =>
          one.for !== "agent" && Math.min(to, ms(one.to) ?? now) - Math.max(from, ms(one.from)) > (to - from) / 2,
      );
      if (wait) return wait.for;
      if (turn.takeovers.some((one) => ms(one.at) >= to && ms(one.at) - (one.seconds ?? 0) * 1000 <= from))
        return "lost";
    }
  }
  const isBusy = timeline.turns.some((turn) => ms(turn.began_at) <= from && (ms(turn.ended_at) ?? now) >= to);
  return isBusy ? "agent" : "idle";
}

/** The first and the last moment of a timeline. */
export function rangeOf(timeline, now) {
  const moments = timeline.turns.flatMap((turn) => [ms(turn.began_at), ms(turn.ended_at) ?? now]);
  for (const session of Object.values(timeline.children ?? {}))
    for (const turn of session.turns) moments.push(ms(turn.ended_at) ?? now);
  return moments.length ? [Math.min(...moments), Math.max(...moments)] : [now, now];
}

/** All takeovers of the tree after the loss of a worker, oldest first. */
export function lossesOf(timeline) {
  return sessionsOf(timeline)
    .flatMap((session) =>
      session.turns.flatMap((turn) =>
        turn.takeovers
          .filter((one) => one.is_loss)
          .map((one) => ({
            ...one,
            agent: session.agent,
            key: `${session.session_id} takeover ${turn.n} ${turn.takeovers.indexOf(one)}`,
          })),
      ),
    )
    .sort((one, other) => ms(one.at) - ms(other.at));
}

/** Seconds of work and of waiting for people over the turns that are shown. */
export function secondsOf(timeline, now) {
  let [work, waiting] = [0, 0];
  for (const turn of timeline.turns) {
    const asked = turn.waits
      .filter((wait) => PERSON.has(wait.for))
      .reduce((sum, wait) => sum + (ms(wait.to) ?? now) - ms(wait.from), 0);
    waiting += asked;
    work += Math.max(0, (ms(turn.ended_at) ?? now) - ms(turn.began_at) - asked);
  }
  return { work: work / 1000, waiting: waiting / 1000 };
}
