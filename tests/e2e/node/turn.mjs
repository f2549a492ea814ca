// One turn with the official JavaScript client: agent, environment, session, stream, tool, answer.
//
//     ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=... node turn.mjs

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const { ANTHROPIC_BASE_URL: baseURL, ANTHROPIC_API_KEY: apiKey } = process.env;
const model = process.env.TAILSTEP_E2E_MODEL ?? "scripted/echo";
const { beta } = new Anthropic({ baseURL, apiKey, maxRetries: 0 });

const agent = await beta.agents.create({
  name: "e2e-node",
  model,
  tools: [{ type: "agent_toolset_20260401" }],
});
assert.equal(agent.version, 1);
const environment = await beta.environments.create({ name: "e2e-node", config: { type: "cloud" } });
const session = await beta.sessions.create({ agent: agent.id, environment_id: environment.id });
assert.equal(session.status, "idle");

const text = (event) => event.content.map((block) => block.text ?? "").join("");

async function turn(message) {
  const seen = [];
  const stream = await beta.sessions.events.stream(session.id);
  const content = [{ type: "text", text: message }];
  const sent = await beta.sessions.events.send(session.id, {
    events: [{ type: "user.message", content }],
  });
  assert.equal(sent.data.length, 1);
  for await (const event of stream) {
    seen.push(event);
    if (event.type === "session.status_idle") break;
  }
  assert.equal(seen.at(-1).stop_reason.type, "end_turn");
  return seen;
}

const first = await turn("Use the bash tool to run exactly: echo from-node");
const result = first.find((event) => event.type === "agent.tool_result");
assert.equal(text(result).trim(), "from-node");
const second = await turn("Reply with exactly this text: done");
assert.equal(text(second.find((event) => event.type === "agent.message")), "done");

const listed = [];
for await (const event of beta.sessions.events.list(session.id, { limit: 3 })) listed.push(event.id);
for (const event of [...first, ...second]) assert.ok(listed.includes(event.id), event.type);
assert.equal(new Set(listed).size, listed.length);

await assert.rejects(beta.sessions.retrieve("sesn_nothing"), Anthropic.NotFoundError);
assert.equal((await beta.sessions.archive(session.id)).status, "terminated");
console.log(`@anthropic-ai/sdk: one session, two turns, ${listed.length} events`);
console.log("1 passed, 0 failed");
