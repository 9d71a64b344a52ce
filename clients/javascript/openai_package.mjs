// The openai package, with client.responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { IMAGE, MODEL, SECRETARY, Weather, play, priceList, told, version, want } from "./scenarios.mjs";

const client = new OpenAI({ maxRetries: 0 });
const ask = (input, more = {}) => client.responses.create({ model: MODEL, input, ...more });

async function plain() {
  const { prompt, before, answer, next, recalled } = told.plain;
  const first = await ask(prompt);
  assert.equal(first.output_text, before + answer);
  assert.deepEqual(first.output.map((item) => item.type), ["reasoning", "message", "mcp_call", "message"]);
  assert.ok(first.usage.total_tokens > 0);
  const all = [{ role: "user", content: prompt }, ...first.output, { role: "user", content: next }];
  const second = await ask(all);
  assert.equal(second.output_text, recalled);
  assert.equal((await ask(next, { previous_response_id: second.id })).output_text, recalled);
  assert.equal((await client.responses.retrieve(first.id)).output_text, before + answer);
}

async function streamed() {
  const { prompt, before, answer } = told.streamed;
  const stream = client.responses.stream({ model: MODEL, input: prompt });
  const deltas = [];
  const numbers = [];
  stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
  for await (const event of stream) numbers.push(event.sequence_number);
  assert.equal(deltas.join(""), before + answer);
  assert.ok(deltas.length > 2);
  assert.deepEqual(numbers, [...numbers.keys()]);
  assert.equal((await stream.finalResponse()).output_text, before + answer);
}

const TOOL = {
  type: "function",
  name: "get_price",
  description: "The price of a thing.",
  strict: true,
  parameters: {
    type: "object",
    properties: { thing: { type: "string" } },
    required: ["thing"],
    additionalProperties: false,
  },
};

/** Runs the functions that a response asks for. */
function results(response, list) {
  const calls = response.output.filter((item) => item.type === "function_call");
  assert.ok(calls.length > 0);
  return calls.map((call) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: list.getPrice(JSON.parse(call.arguments)),
  }));
}

async function tools() {
  const { prompt, answer, next, recalled } = told.tools;
  const list = priceList();
  const first = await ask(prompt, { tools: [TOOL] });
  const second = await ask(results(first, list), { tools: [TOOL], previous_response_id: first.id });
  assert.equal(second.output_text, answer);
  list.check();
  // The same as a stream, with everything sent again.
  const again = priceList();
  const input = [{ role: "user", content: prompt }];
  const asked = await client.responses.stream({ model: MODEL, input, tools: [TOOL] }).finalResponse();
  input.push(...asked.output, ...results(asked, again));
  const done = await client.responses.stream({ model: MODEL, input, tools: [TOOL] }).finalResponse();
  assert.equal(done.output_text, answer);
  again.check();
  input.push(...done.output, { role: "user", content: next });
  assert.equal((await ask(input, { tools: [TOOL] })).output_text, recalled);
}

async function question() {
  const { prompt, question, reply, answer } = told.question;
  const first = await ask(prompt);
  assert.equal(first.output_text, question);
  assert.equal((await ask(reply, { previous_response_id: first.id })).output_text, answer);
  const asked = await client.responses.stream({ model: MODEL, input: prompt }).finalResponse();
  assert.equal(asked.output_text, question);
  const input = [{ role: "user", content: prompt }, ...asked.output, { role: "user", content: reply }];
  assert.equal((await client.responses.stream({ model: MODEL, input }).finalResponse()).output_text, answer);
}

async function approval() {
  const { prompt, answer, next, recalled } = told.approval;
  const write = (input) => client.responses.create({ model: SECRETARY, input });
  const input = [{ role: "user", content: prompt }];
  const asked = await write(input);
  const requests = asked.output.filter((item) => item.type === "mcp_approval_request");
  assert.deepEqual(requests.map((item) => JSON.parse(item.arguments)), [told.approval.letter]);
  const decision = { type: "mcp_approval_response", approval_request_id: requests[0].id, approve: true };
  input.push(...asked.output, decision);
  const done = await write(input);
  assert.equal(done.output_text, answer);
  input.push(...done.output, { role: "user", content: next });
  assert.equal((await write(input)).output_text, recalled);
}

async function background() {
  const { prompt, answer } = told.background;
  await want("slowness");
  const seen = [];
  let id;
  for await (const event of await ask(prompt, { background: true, stream: true })) {
    id ??= event.response?.id;
    seen.push(event);
    if (event.type === "response.output_text.delta") break;
  }
  await want("kill");
  const after = seen.at(-1).sequence_number;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: after })) {
    seen.push(event);
  }
  assert.deepEqual(seen.map((event) => event.sequence_number), [...seen.keys()]);
  const deltas = seen.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), answer);
  assert.equal(seen.at(-1).type, "response.completed");
  // Nobody follows this one: it is asked for until it is done, and the server is killed meanwhile.
  await want("slowness");
  let response = await ask(prompt, { background: true });
  assert.ok(["queued", "in_progress"].includes(response.status));
  await want("kill");
  while (["queued", "in_progress"].includes(response.status)) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    response = await client.responses.retrieve(response.id);
  }
  assert.deepEqual([response.status, response.output_text], ["completed", answer]);
}

const PHOTO = {
  type: "function",
  name: "take_photo",
  strict: false,
  parameters: { type: "object", properties: { of: { type: "string" } } },
};

async function images() {
  const { prompt, answer } = told.images;
  const content = [
    { type: "input_text", text: prompt },
    { type: "input_image", image_url: IMAGE, detail: "auto" },
  ];
  const response = await ask([{ role: "user", content }]);
  assert.equal(response.output_text, answer);
  const listed = [];
  for await (const item of client.responses.inputItems.list(response.id)) listed.push(item);
  assert.equal(listed[0].content[1].image_url, IMAGE);
  const asked = await ask(told.images.photo, { tools: [PHOTO] });
  const [call] = asked.output.filter((item) => item.type === "function_call");
  const output = [{ type: "input_image", image_url: IMAGE }];
  const result = { type: "function_call_output", call_id: call.call_id, output };
  assert.equal((await ask([result], { tools: [PHOTO], previous_response_id: asked.id })).output_text, answer);
}

async function structured() {
  const { prompt, answer } = told.structured;
  const text = { format: zodTextFormat(Weather, "weather") };
  const parsed = await client.responses.parse({ model: MODEL, input: prompt, text });
  assert.deepEqual(parsed.output_parsed, answer);
  const stream = client.responses.stream({ model: MODEL, input: prompt, text });
  assert.deepEqual((await stream.finalResponse()).output_parsed, answer);
}

await play(`openai ${version("openai")} (JavaScript)`, {
  plain, streamed, tools, question, approval, background, images, structured,
});
