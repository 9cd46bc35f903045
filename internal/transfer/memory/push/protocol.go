package push

// What the two connections of a push are for. Package postcopy has what goes over them.
const (
	PurposeUrgent = "urgent" // for pages that processes wait for
	PurposePush   = "push"   // for pages that come by themselves
)
