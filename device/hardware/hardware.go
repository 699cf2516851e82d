// Package hardware reports a device's hardware and its health: capacity, board, buses, sensors,
// storage, and pressure on memory, disk and process ids.
//
// It reads files below a root directory, which may hold the files of another board, and needs no
// privilege. It never changes the device, and knows neither pods nor the hub: package agent applies
// its results and package link sends them. periph.io runs in a child process (Periph, RunChild),
// since a driver may hang or panic. A value that cannot be read is 0 and named in Report.Problems,
// never guessed.
package hardware

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Options say which machine to read. The zero value is this machine.
type Options struct {
	Root       string       // replaces /; if set, only files are read, so addresses and clock are missing
	EngineRoot string       // directory of the engine's images and containers; empty: StateDir
	StateDir   string       // directory of the agent's state; empty: /
	Interface  string       // network interface of the node's address; empty: the interface of the default route
	NodeIPs    []netip.Addr // the node's addresses, at most one of each family; empty: the addresses of Interface
	MaxPods    int64        // 0: 110, or fewer on a device with little memory
	Periph     *Periph      // reads buses and their sensors, on this machine only; nil: skipped

	ExternalIPs []netip.Addr // addresses at which other machines reach the device, such as its router's
}

// A Report describes a device; its JSON is the "hardware" of a status. Encode it with Report.JSON,
// which keeps it within MaxReport.
type Report struct {
	Host         Host                 `json:"host"`
	Board        Board                `json:"board"`
	Firmware     *Firmware            `json:"firmware,omitempty"`
	Capacity     Capacity             `json:"capacity"`
	NUMA         []NUMANode           `json:"numa,omitempty"` // NUMA nodes, if the machine has several
	Addresses    []corev1.NodeAddress `json:"addresses,omitempty"`
	Buses        Buses                `json:"buses"`
	Devices      []Device             `json:"devices,omitempty"` // devices for containers
	Temperatures []Temperature        `json:"temperatures,omitempty"`
	Fans         []Fan                `json:"fans,omitempty"`
	Voltages     []Voltage            `json:"voltages,omitempty"`
	Power        *Power               `json:"power,omitempty"`  // nil: unknown
	Supply       *Supply              `json:"supply,omitempty"` // nil: unknown
	Disks        []Disk               `json:"disks,omitempty"`
	// ReadOnly are disks mounted read-only, the first sign of a failing SD card.
	ReadOnly     []string  `json:"readOnlyMounts,omitempty"`
	Unwritable   []string  `json:"unwritable,omitempty"` // directories of agent and engine on a read-only file system
	Watchdog     *Watchdog `json:"watchdog,omitempty"`
	Clock        *Clock    `json:"clock,omitempty"`
	Radios       []Radio   `json:"radios,omitempty"`
	Audio        []string  `json:"audio,omitempty"`  // sound cards
	Chips        []string  `json:"chips,omitempty"`  // chips on I2C buses that the kernel knows from its configuration, such as 1-0068 ds3231
	Stalls       *Stalls   `json:"stalls,omitempty"` // nil: the kernel does not measure them
	MemoryLimits bool      `json:"memoryLimits"`     // the kernel can limit the memory of a container
	Problems     []string  `json:"problems,omitempty"`
}

// A Host is the operating system and processor.
type Host struct {
	Hostname  string `json:"hostname,omitempty"`
	OS        string `json:"os"`                // GOOS
	Arch      string `json:"arch"`              // GOARCH of the agent
	Variant   string `json:"variant,omitempty"` // variant of an ARM processor: v6, v7, v8
	CPU       string `json:"cpu,omitempty"`
	Kernel    string `json:"kernel,omitempty"`
	Image     string `json:"image,omitempty"`     // such as Debian GNU/Linux 12 (bookworm)
	MachineID string `json:"machineID,omitempty"` // see MachineID
	BootID    string `json:"bootID,omitempty"`    // changes at every boot
	PageSize  int    `json:"pageSize"`            // bytes

	OSMachineID string `json:"-"` // systemd's id, which the kubelet reports as the Node's machineID
	SystemUUID  string `json:"-"` // the hardware's UUID

	// Features are the processor features that programs may require, by the kernel's names.
	Features []string `json:"features,omitempty"`
}

// A Board is the computer's board.
type Board struct {
	Name       string    `json:"name"` // short name, valid as a label value, such as raspberrypi4
	Model      string    `json:"model,omitempty"`
	Compatible []string  `json:"compatible,omitempty"` // device-tree names, the most specific first
	Serial     string    `json:"serial,omitempty"`
	Revision   *Revision `json:"revision,omitempty"` // set for Raspberry Pis only
}

// A Firmware is the program that started the kernel.
type Firmware struct {
	Version   string `json:"version,omitempty"`   // version of the boot EEPROM or the BIOS
	Built     string `json:"built,omitempty"`     // build date
	Image     string `json:"image,omitempty"`     // system image, from issue.txt on the boot partition
	BootMode  string `json:"bootMode,omitempty"`  // sd, network, rpiboot, usb, nvme, http
	Partition int    `json:"partition,omitempty"` // number of the boot partition
	Tryboot   bool   `json:"tryboot,omitempty"`   // this boot is a tryboot trial
	// Reset says why the board was reset: power-on, watchdog, under-voltage; empty: unknown.
	Reset       string `json:"reset,omitempty"`
	ResetStatus string `json:"resetStatus,omitempty"` // the register PM_RSTS of a Raspberry Pi, hex
}

// A NUMANode is a group of processors and their nearest memory.
type NUMANode struct {
	ID     int    `json:"id"`
	CPUs   string `json:"cpus"`   // such as 0-3
	Memory int64  `json:"memory"` // bytes
}

// A Capacity is the device's total resources; 0 if unknown.
type Capacity struct {
	CPUs      int64 `json:"cpus"`
	Memory    int64 `json:"memory"`    // bytes
	Ephemeral int64 `json:"ephemeral"` // bytes of the file system with the containers
	Pods      int64 `json:"pods"`
	Swap      int64 `json:"swap"` // bytes

	HugePages map[int64]int64 `json:"hugePages,omitempty"` // reserved bytes by page size
}

// Buses are the names of buses in periph.
type Buses struct {
	GPIO    []string `json:"gpio,omitempty"`
	I2C     []string `json:"i2c,omitempty"`
	SPI     []string `json:"spi,omitempty"`
	OneWire []string `json:"oneWire,omitempty"`
	LEDs    []string `json:"leds,omitempty"`
}

// A Temperature is the reading of one sensor.
type Temperature struct {
	Name    string  `json:"name"`
	Celsius float64 `json:"celsius"`
}

// A Fan is a fan that reports its speed.
type Fan struct {
	Name string `json:"name"`
	RPM  int64  `json:"rpm"` // turns per minute
}

// A Voltage is a voltage measured on the board.
type Voltage struct {
	Name  string  `json:"name"`
	Volts float64 `json:"volts"`
}

// A Supply describes what a Raspberry Pi 5's power supply can deliver.
type Supply struct {
	MaxMilliamps   int  `json:"maxMilliamps"`
	USBOverCurrent bool `json:"usbOverCurrent,omitempty"` // the USB ports took too much current before the boot
}

// Power is a Raspberry Pi firmware's report about its supply and its own throttling. The last four
// fields say whether each of the first four was ever true since the boot.
type Power struct {
	UnderVoltage    bool `json:"underVoltage"`
	FrequencyCapped bool `json:"frequencyCapped"`
	Throttled       bool `json:"throttled"`
	SoftTemperature bool `json:"softTemperature"`

	UnderVoltageSeen    bool `json:"underVoltageSeen"`
	FrequencyCappedSeen bool `json:"frequencyCappedSeen"`
	ThrottledSeen       bool `json:"throttledSeen"`
	SoftTemperatureSeen bool `json:"softTemperatureSeen"`

	doubted string // the sources that disagree about the voltage; empty: they agree
}

// A Disk is a block device. SD cards do not report their wear, so the written bytes are the best
// estimate.
type Disk struct {
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"` // SD or MMC; empty for other disks
	Model     string `json:"model,omitempty"`
	Maker     string `json:"maker,omitempty"` // manufacturer id and OEM id of a card
	Made      string `json:"made,omitempty"`  // month/year of manufacture
	Bytes     int64  `json:"bytes"`
	Written   int64  `json:"written"`             // bytes written since the boot
	LifeUsed  int    `json:"lifeUsed,omitempty"`  // percent of an eMMC's life, rounded up to tens; above 100: past its life
	EndOfLife string `json:"endOfLife,omitempty"` // spare blocks of an eMMC: normal, warning, urgent
	Errors    int64  `json:"errors,omitempty"`    // number of ext4 errors on the disk
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// A Watchdog is the board's hardware watchdog.
type Watchdog struct {
	Identity   string `json:"identity,omitempty"`
	State      string `json:"state,omitempty"`
	Timeout    int    `json:"timeout"`              // seconds
	MaxTimeout int    `json:"maxTimeout,omitempty"` // seconds
	BootStatus int    `json:"bootStatus"`           // not 0: the watchdog caused the last reset
}

// A Clock says whether the time is reliable.
type Clock struct {
	Synced bool `json:"synced"` // a time service such as NTP adjusts the kernel's clock
	// RTC reports whether the board has a real-time clock. Only with a good battery the clock
	// survives a power cut.
	RTC bool `json:"rtc"`

	Name    string   `json:"name,omitempty"`    // driver of the real-time clock
	Battery *float64 `json:"battery,omitempty"` // voltage of the real-time clock's battery; nil: unknown
}

// A Radio is a wireless interface.
type Radio struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"` // wifi, bluetooth, wwan
	Signal int    `json:"signal,omitempty"`
}

// Stalls are the shares of time in percent, over 10 and 60 s, in which some tasks waited for a
// resource; for memory and io also the share in which all tasks waited.
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
