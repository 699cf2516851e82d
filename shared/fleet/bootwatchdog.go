package fleet

import "fmt"

// Bounds of the watchdog's timeout in seconds. A Raspberry Pi's watchdog supports at most 15 s;
// with a longer timeout systemd uses no watchdog (systemd#27427).
const (
	minWatchdog            = 5
	maxWatchdog            = 600
	maxWatchdogRaspberryPi = 15
)

// word returns the kernel parameter that makes systemd (250 and newer) feed the watchdog. As a
// kernel parameter it is tried and undone like other words. systemd itself watches the agent
// (WatchdogSec of the agent's unit).
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
		wrong("watchdog.rebootSec: is not supported: systemd's default of 10 minutes is used; set RebootWatchdogSec in the " +
			"board's /etc/systemd/system.conf")
	}
	switch {
	case w.RuntimeSec == 0:
	case !w.Hardware:
		wrong("watchdog.runtimeSec: has no effect without hardware: true")
	case w.RuntimeSec < minWatchdog || w.RuntimeSec > most:
		wrong("watchdog.runtimeSec: is %d: use %d to %d, which the board's watchdog supports", w.RuntimeSec, minWatchdog,
			most)
	}
	return errs
}
