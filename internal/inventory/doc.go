// Package inventory looks at what the engines of this node have, and lets no engine that hangs hold up who
// asks. Lists have the containers as the engines have listed them, one look for all who ask within an
// interval. Looks runs whatever else may have to wait for an engine, one look of a name at a time.
//
// A list may be old: it is for what nodes tell each other again and again. Whoever decides about a container
// asks its engine. The package knows no other node, no network and no migration.
package inventory
