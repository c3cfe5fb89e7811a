// Call one exported function of a TypeScript tools file: started by the worker as `node typescript_tool.mjs`, or by
// whatever else runs TypeScript (tsx, bun). LLM_TOOL_FILE and LLM_TOOL_FUNCTION say what to call, LLM_TOOL_DATA_FILE
// holds the arguments, LLM_TOOL_PARAMETERS their order; what the function returns goes to LLM_OUTPUT (spec 4.4).

import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const { LLM_TOOL_FILE: file, LLM_TOOL_FUNCTION: name, LLM_TOOL_PARAMETERS: order } = process.env;
for (const own of ["LLM_TOOL_FILE", "LLM_TOOL_FUNCTION", "LLM_TOOL_PARAMETERS"]) delete process.env[own];

function find(module) {
  const places = [module, module.default, module.default?.default]; // the latter where the file is taken as CommonJS
  for (const place of places) {
    if (typeof place?.[name] === "function") return place[name];
    if (typeof place === "function" && place.name === name) return place;
  }
  throw new Error(`${file} exports no function ${name}`);
}

function asText(result) {
  if (result === null || result === undefined) return undefined;
  return typeof result === "object" ? JSON.stringify(result, null, 2) : String(result);
}

try {
  const args = JSON.parse(await readFile(process.env.LLM_TOOL_DATA_FILE, "utf8"));
  const call = find(await import(pathToFileURL(file).href));
  const text = asText(await call(...JSON.parse(order).map((parameter) => args[parameter])));
  if (text !== undefined) await writeFile(process.env.LLM_OUTPUT, text);
} catch (error) {
  console.error(error?.stack ?? error);
  process.exitCode = 1;
}
