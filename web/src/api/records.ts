// The records of the API by the names that the pages use.

export type * from "./schema";
import type { DeltaMessage, Event } from "./schema";

export type Body = Event["body"];
export type Delta = DeltaMessage["delta"];
