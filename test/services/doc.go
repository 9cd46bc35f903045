// Package services moves services that people run, as their packages ship them, while their own clients use
// them: to another node and back, in each mode, over a fast and a slow link. No client may see an error,
// and no acknowledged data may be lost.
//
// A service is a value (service): packages of Debian, a command, and a function that connects a client. The
// harness does the rest: image_test.go makes the images, client_test.go sends requests all the time and
// counts, move_test.go moves. A service that Godwit must refuse says so, and the refusal has to name the
// reason.
//
// Environment: SERVICES is a pattern of names, MODES, LINKS and SERVICES_ENGINES are lists, SERVICES_JSON and
// SERVICES_TABLE are files for the figures. Without them all services move in all modes over both links with
// the embedded engine.
//
// The package is in a separate module, so that the clients' libraries are no dependencies of the product.
package services
