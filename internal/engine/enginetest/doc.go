// Package enginetest is the conformance suite of engine.Engine: the properties on which migrations rely, as
// tests that every engine must pass. An engine's own tests call Run with a Fixture that makes containers in
// the engine's own way.
package enginetest
