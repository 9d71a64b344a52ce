// What a session's state is called: the same word on every screen.

import { words } from "./format.js";

const STATES = {
  INITED: "new",
  RESEARCHING: "working",
  WAITING_FOR_CLARIFICATION: "asks",
  WAITING_FOR_APPROVAL: "needs approval",
  WAITING_FOR_AGENT: "waits for agent",
};

/** `questions`: what is open of it, where that is known; a call of unknown outcome needs no approval but an answer. */
export function stateWords(state, questions = []) {
  const isUnknown = state === "WAITING_FOR_APPROVAL" && questions.length > 0 && questions.every((one) => one.kind === "unknown_outcome");
  return isUnknown ? "unknown outcome" : STATES[state] ?? words(state);
}
