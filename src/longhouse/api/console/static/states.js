// What a session's state is called: the same word on every screen.

import { words } from "./format.js";

const STATES = {
  INITED: "new",
  RESEARCHING: "working",
  WAITING_FOR_CLARIFICATION: "asks",
  WAITING_FOR_APPROVAL: "needs approval",
  WAITING_FOR_AGENT: "waits for agent",
};

const RATHER = {
  WAITING_FOR_APPROVAL: { unknown_outcome: "unknown outcome", worker_lost: "worker lost" },
  WAITING_FOR_CLARIFICATION: { client: "waits for client" },
};

/** `questions`: what is open of it, where that is known; a call of unknown outcome, or a lost step, needs no approval,
 * and a call that the client runs asks nobody. */
export function stateWords(state, questions = []) {
  const kinds = new Set(state in RATHER ? questions.map((one) => one.kind) : []);
  return (kinds.size === 1 && RATHER[state][[...kinds][0]]) || (STATES[state] ?? words(state));
}
