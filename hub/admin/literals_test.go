package admin

// The page's limits as the manual states them.
const (
	liveStream  = "text/event-stream"
	mostItems   = 10_000    // objects of one action
	mostSaved   = 256 << 20 // bytes of a downloaded log
	doneAtOnce  = 8         // open terminals
	restarted   = "kubectl.kubernetes.io/restartedAt"
	fromCronJob = "cronjob.kubernetes.io/instantiate"
)
