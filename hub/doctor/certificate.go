package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/pki"
)

// certificates looks at every certificate below pki/.
func (p Patient) certificates() (all []Finding) {
	dir := filepath.Join(p.Config.DataDir, "pki")
	files, _ := fs.Glob(os.DirFS(dir), "*.crt")
	own := []string{"root.crt", "intermediate.crt"}
	for _, name := range own {
		if !slices.Contains(files, name) {
			all = append(all, Finding{Fail, "certificates", "pki/" + name + " is not there",
				"restore the directory pki from a copy: devices know the hub by it"})
		}
	}
	for _, file := range files {
		name := "pki/" + file
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			all = append(all, Finding{Fail, "certificates", err.Error(), "run this as the user of the hub, or as root"})
			continue
		}
		all = append(all, p.certificate(name, text))
	}
	if Worst(all) == Fail { // keys are good for nothing without
		return all
	}
	if err := pki.Look(p.Config.DataDir); err != nil {
		all = append(all, Finding{Fail, "certificates", err.Error(), startsNot})
	}
	return all
}

func (p Patient) certificate(name string, text []byte) Finding {
	block, _ := pem.Decode(text)
	if block == nil {
		return Finding{Fail, "certificates", name + " holds none", "restore the directory pki from a copy"}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Finding{Fail, "certificates", fmt.Sprintf("%s cannot be read: %v", name, err),
			"restore the directory pki from a copy"}
	}
	left, until := cert.NotAfter.Sub(p.Now), cert.NotAfter.Format(time.DateOnly)
	root := strings.HasPrefix(filepath.Base(name), "root")
	switch {
	case strings.Contains(name, "former") || strings.Contains(name, "cross"): // they end with the trust in them
	case p.Now.Before(cert.NotBefore.Add(-time.Hour)):
		return Finding{Fail, "certificates",
			fmt.Sprintf("%s is good only from %s on", name, cert.NotBefore.Format(time.DateOnly)),
			"the clock of this machine is behind: set it"}
	case left <= 0 && root:
		return Finding{Fail, "certificates", fmt.Sprintf("%s ended on %s", name, until),
			"set the clock if it is wrong; else `flotilla-hub ca rotate --root`, and join the devices anew"}
	case left <= 0:
		return Finding{Fail, "certificates", fmt.Sprintf("%s ended on %s", name, until),
			"set the clock if it is wrong; else start the hub, which makes a new one"}
	case left < soon && root:
		return Finding{Warn, "certificates", fmt.Sprintf("%s ends on %s", name, until),
			"`flotilla-hub ca rotate --root` while the devices still believe it"}
	case left < tooSoon:
		return Finding{Warn, "certificates", fmt.Sprintf("%s ends on %s, and the hub should have renewed it", name, until),
			"start the hub, and see its log"}
	}
	return Finding{OK, "certificates", fmt.Sprintf("%s is good until %s", name, until), ""}
}
