// Package kept has the files that came by migrations which failed before their containers ran here: what is
// here the next attempt need not send.
//
// They can be given up at any time, and are read before they are used, so nothing depends on how they came to
// be what they are. The package knows neither the migration that failed nor the one that uses them.
package kept
