// Package inventory lists the containers of this node's engines, so that an engine that hangs delays only
// requests that need that engine.
//
// Lists caches each engine's list: everyone who asks within an interval shares one request. Looks runs other
// work that may block on an engine: at most one run per name at a time, and callers wait only briefly.
//
// A list may be out of date. That is good enough for what nodes tell each other; code that decides about one
// container must ask the engine. The package knows no other node, no network and no migration.
package inventory
