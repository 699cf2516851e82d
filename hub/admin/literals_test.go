package admin

// What the page promises, as the tests of the whole page hold it to.
const (
	liveStream  = "text/event-stream"
	mostItems   = 10_000    // that one action is done to
	mostSaved   = 256 << 20 // bytes of a log in a file
	doneAtOnce  = 8         // of them
	restarted   = "kubectl.kubernetes.io/restartedAt"
	fromCronJob = "cronjob.kubernetes.io/instantiate"
)
