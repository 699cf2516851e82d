package line

import "net"

// Packet is how much of what is said a packet carries at most: what Linux itself goes back to
// (tcp_base_mss) where larger ones are lost. Tunnels and mobile lines often carry less than the
// 1,460 bytes of an Ethernet without saying so, and then whatever is short arrives, and neither a
// handshake nor a desired state ever does.
const Packet = 1024

// Dialer makes connections in which neither end sends larger packets than that.
func Dialer() *net.Dialer { return &net.Dialer{Control: packets} }

// Listener is one whose connections are alike.
func Listener() *net.ListenConfig {
	l := &net.ListenConfig{Control: packets}
	l.SetMultipathTCP(false) // which takes no size of packets
	return l
}
