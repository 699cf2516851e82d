package fleet

import "fmt"

// How long systemd may not feed the hardware watchdog before the board is reset, in seconds. The
// one of a Raspberry Pi cannot count beyond 15 s, and systemd then has none at all (systemd#27427).
const (
	minWatchdog            = 5
	maxWatchdog            = 600
	maxWatchdogRaspberryPi = 15
)

// word is what makes systemd (250 and newer) feed the watchdog: a word of the kernel's command
// line, so that it is tried, judged and undone as all that is booted. Who feeds is systemd, and the
// agent feeds systemd while its loop turns (WatchdogSec of its unit).
func (w *BootWatchdog) word() string {
	if w == nil || !w.Hardware || w.RuntimeSec == 0 {
		return ""
	}
	return fmt.Sprintf("systemd.watchdog_sec=%d", w.RuntimeSec)
}

func (w *BootWatchdog) validate(backend string) (errs []error) {
	if w == nil {
		return nil
	}
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	most := int32(maxWatchdog)
	if backend == BootConfigTxt {
		most = maxWatchdogRaspberryPi
	}
	if w.RebootSec != 0 {
		wrong("watchdog.rebootSec: is not supported: systemd's own, 10 minutes, counts; set RebootWatchdogSec in the " +
			"board's /etc/systemd/system.conf")
	}
	switch {
	case w.RuntimeSec == 0:
	case !w.Hardware:
		wrong("watchdog.runtimeSec: says nothing without hardware: true")
	case w.RuntimeSec < minWatchdog || w.RuntimeSec > most:
		wrong("watchdog.runtimeSec: is %d: use %d to %d, as far as the board's watchdog counts", w.RuntimeSec, minWatchdog,
			most)
	}
	return errs
}
