// The official JavaScript worker as the hands of our session.
//
//     ANTHROPIC_BASE_URL=… ANTHROPIC_API_KEY=… ANTHROPIC_ENVIRONMENT_KEY=… node worker.mjs

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import Anthropic from "@anthropic-ai/sdk";
import { EnvironmentWorker } from "@anthropic-ai/sdk/helpers/beta/environments";

const { ANTHROPIC_BASE_URL: baseURL, ANTHROPIC_API_KEY: apiKey } = process.env;
const environmentKey = process.env.ANTHROPIC_ENVIRONMENT_KEY;
const model = process.env.TAILSTEP_E2E_MODEL ?? "scripted/echo";
const client = new Anthropic({ baseURL, apiKey });
const { beta } = client;

const environment = await beta.environments.create({
  name: "e2e-node-worker",
  config: { type: "self_hosted" },
});
const agent = await beta.agents.create({
  name: "e2e-node-worker",
  model,
  tools: [{ type: "agent_toolset_20260401" }],
});
const session = await beta.sessions.create({ agent: agent.id, environment_id: environment.id });
const say = "Take 2 steps with the bash tool: echo from-node >> steps; cat steps";
await beta.sessions.events.send(session.id, {
  events: [{ type: "user.message", content: [{ type: "text", text: say }] }],
});

const text = (event) => event.content.map((block) => block.text ?? "").join("");
const workdir = await mkdtemp(join(tmpdir(), "tailstep-worker-"));
const stop = new AbortController();
const worker = new EnvironmentWorker({
  client,
  environmentId: environment.id,
  environmentKey,
  workdir,
  maxIdleMs: 1_000,
  signal: stop.signal,
});
const running = worker.run().catch((error) => {
  if (!stop.signal.aborted) throw error;
});

let events = [];
const until = Date.now() + 30_000;
for (;;) {
  events = [];
  for await (const event of beta.sessions.events.list(session.id)) events.push(event);
  const last = events.at(-1);
  if (last?.type === "session.status_idle" && last.stop_reason.type === "end_turn") break;
  assert.ok(Date.now() < until, events.map((event) => event.type).join(" "));
  await sleep(100);
}
const results = events.filter((event) => event.type === "user.tool_result");
const expected = [["from-node"], ["from-node", "from-node"]];
assert.deepEqual(results.map((event) => text(event).trim().split(/\s+/)), expected);

for (;;) {
  const stats = await beta.environments.work.stats(environment.id);
  const items = [];
  for await (const item of beta.environments.work.list(
    environment.id,
    {},
    { headers: { authorization: `Bearer ${environmentKey}`, "x-api-key": null } },
  )) {
    items.push(item.state);
  }
  if (items.length > 0 && items.every((state) => state === "stopped")) {
    assert.deepEqual([stats.depth, stats.pending], [0, 0]);
    break;
  }
  assert.ok(Date.now() < until, items.join(" "));
  await sleep(100);
}
stop.abort();
await running;
await rm(workdir, { recursive: true, force: true });
console.log(`@anthropic-ai/sdk worker: ${results.length} calls`);
console.log("1 passed, 0 failed");
