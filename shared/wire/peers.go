package wire

// Headers of a device's HTTPS requests for blobs of images, when devices of a site share them.
const (
	// HeaderPeerPort has the port at which the device serves its neighbours.
	HeaderPeerPort = "Flotilla-Peer-Port"
	// HeaderNotFrom has addresses of neighbours that failed.
	HeaderNotFrom = "Flotilla-Not-From"
	// HeaderPeers of an answer without content has addresses of neighbours to ask.
	HeaderPeers = "Flotilla-Peers"
)
