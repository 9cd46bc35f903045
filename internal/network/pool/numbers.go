package pool

// Interface groups by which the packet filter recognises our devices; any program can choose names.
const (
	GroupContainer = 7441
	GroupTunnel    = 7442
	GroupHold      = 7443
	GroupOverlay   = 7444
)

// RouteProtocol marks our routes (RTPROT, linux/rtnetlink.h: unregistered values over 4 are free).
const RouteProtocol = 103

// Ingress marks in packet and connection marks: the number of the node by which a connection came in.
const (
	IngressShift = 16
	IngressMask  = MaxNodeNumber << IngressShift
)

// PassMark marks packets to and from containers on bridges that are forwarded because their own node has
// let them in before. If another program's chain drops unknown packets, that chain has the last word;
// Docker asks a chain for other programs' rules before its own.
const PassMark = 1 << 28

// InsideDevice is the name of a container's interface.
const InsideDevice = "eth0"
