// Package hardware says what a device is made of and how it fares: capacity,
// board, buses, sensors, storage, and whether memory, disk or process ids run
// short.
//
// It reads files below a root directory, so that a directory can stand for a
// board that is not there, and it needs no privilege. It never changes anything
// on the device, and it knows neither pods nor the hub: what the figures mean for
// pods is package agent's work, how they travel package link's. periph.io runs in
// a child process (Periph, RunChild), for a driver that panics or hangs must not
// take the agent with it. What cannot be read is named in Report.Problems and
// counts as zero, never as a guess.
package hardware

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Options say where to look. The zero value is this machine.
type Options struct {
	Root       string       // directory in place of /; with one, only files are read: no addresses, no clock
	EngineRoot string       // directory of the engine's images and containers; empty: StateDir
	StateDir   string       // directory of the agent's state; empty: /
	Interface  string       // network interface whose address is the node's; empty: that of the default route
	NodeIPs    []netip.Addr // the node's addresses, at most one of each family; none: those of Interface
	MaxPods    int64        // 0: 110, fewer where the memory is small
	Periph     *Periph      // buses and their sensors, of this machine only; nil: not asked

	ExternalIPs []netip.Addr // addresses by which others reach the device, such as its router's: nothing here knows them
}

// A Report is what a device tells about itself; its JSON is the "hardware" of a
// status. Use JSON to encode it: that keeps the size within MaxReport.
type Report struct {
	Host         Host                 `json:"host"`
	Board        Board                `json:"board"`
	Firmware     *Firmware            `json:"firmware,omitempty"`
	Capacity     Capacity             `json:"capacity"`
	NUMA         []NUMANode           `json:"numa,omitempty"` // where there is more than one
	Addresses    []corev1.NodeAddress `json:"addresses,omitempty"`
	Buses        Buses                `json:"buses"`
	Devices      []Device             `json:"devices,omitempty"` // what containers can be given
	Temperatures []Temperature        `json:"temperatures,omitempty"`
	Fans         []Fan                `json:"fans,omitempty"`
	Voltages     []Voltage            `json:"voltages,omitempty"`
	Power        *Power               `json:"power,omitempty"`  // nil: the board does not tell
	Supply       *Supply              `json:"supply,omitempty"` // nil: nobody asks it
	Disks        []Disk               `json:"disks,omitempty"`
	// disks mounted read-only: the first sign of a dying SD card
	ReadOnly     []string  `json:"readOnlyMounts,omitempty"`
	Unwritable   []string  `json:"unwritable,omitempty"` // directories of agent and engine on a read-only file system
	Watchdog     *Watchdog `json:"watchdog,omitempty"`
	Clock        *Clock    `json:"clock,omitempty"`
	Radios       []Radio   `json:"radios,omitempty"`
	Audio        []string  `json:"audio,omitempty"`  // sound cards
	Chips        []string  `json:"chips,omitempty"`  // on I2C buses that the kernel was told of, such as 1-0068 ds3231
	Stalls       *Stalls   `json:"stalls,omitempty"` // nil: the kernel does not measure them
	MemoryLimits bool      `json:"memoryLimits"`     // the kernel can limit the memory of a container
	Problems     []string  `json:"problems,omitempty"`
}

// A Host is the operating system and the processor under it.
type Host struct {
	Hostname  string `json:"hostname,omitempty"`
	OS        string `json:"os"`                // GOOS
	Arch      string `json:"arch"`              // GOARCH of the agent
	Variant   string `json:"variant,omitempty"` // of an ARM processor: v6, v7, v8
	CPU       string `json:"cpu,omitempty"`
	Kernel    string `json:"kernel,omitempty"`
	Image     string `json:"image,omitempty"`     // such as Debian GNU/Linux 12 (bookworm)
	MachineID string `json:"machineID,omitempty"` // see MachineID
	BootID    string `json:"bootID,omitempty"`    // changes with every boot, whatever the clock says
	PageSize  int    `json:"pageSize"`            // bytes

	OSMachineID string `json:"-"` // systemd's, as the kubelet tells it; the Node has it
	SystemUUID  string `json:"-"` // of the hardware

	// of the processor, by the kernel's names; those that programs are built for
	Features []string `json:"features,omitempty"`
}

// A Board is the computer itself.
type Board struct {
	Name       string    `json:"name"` // short, fit for a label: raspberrypi4
	Model      string    `json:"model,omitempty"`
	Compatible []string  `json:"compatible,omitempty"` // device-tree names, the most specific first
	Serial     string    `json:"serial,omitempty"`
	Revision   *Revision `json:"revision,omitempty"` // Raspberry Pi only
}

// A Firmware is what started the kernel, and from where.
type Firmware struct {
	Version   string `json:"version,omitempty"`   // of the boot EEPROM or the BIOS
	Built     string `json:"built,omitempty"`     // its date
	Image     string `json:"image,omitempty"`     // of the system, from issue.txt on the boot partition
	BootMode  string `json:"bootMode,omitempty"`  // sd, network, rpiboot, usb, nvme, http
	Partition int    `json:"partition,omitempty"` // that it has booted from
	Tryboot   bool   `json:"tryboot,omitempty"`   // this boot is a try of a new one
	// why the board was reset: power-on, watchdog, under-voltage; empty: nobody says
	Reset       string `json:"reset,omitempty"`
	ResetStatus string `json:"resetStatus,omitempty"` // the register PM_RSTS of a Raspberry Pi, hex
}

// A NUMANode is processors and the memory that is near to them.
type NUMANode struct {
	ID     int    `json:"id"`
	CPUs   string `json:"cpus"`   // such as 0-3
	Memory int64  `json:"memory"` // bytes
}

// A Capacity is what the device has in all; 0 is also what could not be read.
type Capacity struct {
	CPUs      int64 `json:"cpus"`
	Memory    int64 `json:"memory"`    // bytes
	Ephemeral int64 `json:"ephemeral"` // bytes, of the file system that holds containers
	Pods      int64 `json:"pods"`
	Swap      int64 `json:"swap"` // bytes

	HugePages map[int64]int64 `json:"hugePages,omitempty"` // bytes set aside, by a page's size
}

// Buses are the names by which periph knows what can be connected.
type Buses struct {
	GPIO    []string `json:"gpio,omitempty"`
	I2C     []string `json:"i2c,omitempty"`
	SPI     []string `json:"spi,omitempty"`
	OneWire []string `json:"oneWire,omitempty"`
	LEDs    []string `json:"leds,omitempty"`
}

// A Temperature is one sensor's reading.
type Temperature struct {
	Name    string  `json:"name"`
	Celsius float64 `json:"celsius"`
}

// A Fan is one that tells how fast it turns.
type Fan struct {
	Name string `json:"name"`
	RPM  int64  `json:"rpm"` // turns a minute
}

// A Voltage is one that is measured on the board.
type Voltage struct {
	Name  string  `json:"name"`
	Volts float64 `json:"volts"`
}

// A Supply is what the power supply has promised to a Raspberry Pi 5.
type Supply struct {
	MaxMilliamps   int  `json:"maxMilliamps"`
	USBOverCurrent bool `json:"usbOverCurrent,omitempty"` // the USB ports took more than they may before the boot
}

// Power is what a Raspberry Pi's firmware says of its supply and of what it did
// about it; the second four have been so at some time since the boot.
type Power struct {
	UnderVoltage    bool `json:"underVoltage"`
	FrequencyCapped bool `json:"frequencyCapped"`
	Throttled       bool `json:"throttled"`
	SoftTemperature bool `json:"softTemperature"`

	UnderVoltageSeen    bool `json:"underVoltageSeen"`
	FrequencyCappedSeen bool `json:"frequencyCappedSeen"`
	ThrottledSeen       bool `json:"throttledSeen"`
	SoftTemperatureSeen bool `json:"softTemperatureSeen"`

	doubted string // by which source the voltage is too low, and by which it is not; empty: they agree
}

// A Disk is a block device. SD cards tell nothing about their wear, so the
// bytes written are the best sign of it.
type Disk struct {
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"` // SD, MMC; empty: neither
	Model     string `json:"model,omitempty"`
	Maker     string `json:"maker,omitempty"` // manufacturer id and OEM id of a card
	Made      string `json:"made,omitempty"`  // month/year
	Bytes     int64  `json:"bytes"`
	Written   int64  `json:"written"`             // bytes since the boot
	LifeUsed  int    `json:"lifeUsed,omitempty"`  // percent, eMMC, rounded up to tens; above 100: past its life
	EndOfLife string `json:"endOfLife,omitempty"` // normal, warning, urgent (eMMC's spare blocks)
	Errors    int64  `json:"errors,omitempty"`    // that ext4 has ever met on it
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// A Watchdog is the board's hardware watchdog.
type Watchdog struct {
	Identity   string `json:"identity,omitempty"`
	State      string `json:"state,omitempty"`
	Timeout    int    `json:"timeout"`              // seconds
	MaxTimeout int    `json:"maxTimeout,omitempty"` // seconds
	BootStatus int    `json:"bootStatus"`           // not 0: it caused the last reset
}

// A Clock says whether the time can be trusted.
type Clock struct {
	Synced bool `json:"synced"` // the kernel's clock is disciplined by NTP or the like
	// there is a clock that runs without the system; whether through a power cut, its battery decides
	RTC bool `json:"rtc"`

	Name    string   `json:"name,omitempty"`    // of that clock's driver
	Battery *float64 `json:"battery,omitempty"` // volts of its battery; nil: nothing measures it
}

// A Radio is a wireless interface.
type Radio struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"` // wifi, bluetooth, wwan
	Signal int    `json:"signal,omitempty"`
}

// Stalls are the shares of time, in percent over 10 and 60 s, in which some task
// (and for memory and io: all tasks) waited for a resource.
type Stalls struct {
	CPU    Stall `json:"cpu"`
	Memory Stall `json:"memory"`
	IO     Stall `json:"io"`
}

// A Stall is one resource of Stalls.
type Stall struct {
	Some10 float64 `json:"some10"`
	Some60 float64 `json:"some60"`
	Full10 float64 `json:"full10"`
	Full60 float64 `json:"full60"`
}
