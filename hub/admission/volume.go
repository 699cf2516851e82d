package admission

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var hostPathTypes = []corev1.HostPathType{
	corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
	corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket,
}

// volumes checks the volumes of a pod and returns their names.
func (l *list) volumes(volumes []corev1.Volume, p *field.Path) map[string]bool {
	names := map[string]bool{}
	for i := range volumes {
		v, at := &volumes[i], p.Index(i)
		switch {
		case v.Name == "":
			l.required(at.Child("name"), "")
		case names[v.Name]:
			l.duplicate(at.Child("name"), v.Name)
		default:
			label(l, at.Child("name"), v.Name)
		}
		names[v.Name] = true
		l.volume(&v.VolumeSource, at)
	}
	return names
}

func (l *list) volume(v *corev1.VolumeSource, p *field.Path) {
	n := 0
	source := func(set bool, name string, check func(*field.Path)) {
		switch {
		case set && n > 0:
			l.forbidden(p.Child(name), "may not specify more than 1 volume type")
		case set:
			n++
			check(p.Child(name))
		}
	}
	source(v.EmptyDir != nil, "emptyDir", func(p *field.Path) {
		if q := v.EmptyDir.SizeLimit; q != nil && q.Sign() < 0 {
			l.forbidden(p.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
		}
		if m := v.EmptyDir.Medium; m != corev1.StorageMediumDefault {
			oneOf(l, p.Child("medium"), m, corev1.StorageMediumMemory)
		}
	})
	source(v.HostPath != nil, "hostPath", func(p *field.Path) {
		if v.HostPath.Path == "" {
			l.required(p.Child("path"), "")
		} else {
			noDotDot(l, p.Child("path"), v.HostPath.Path)
		}
		if t := v.HostPath.Type; t != nil {
			oneOf(l, p.Child("type"), *t, hostPathTypes...)
		}
	})
	source(v.PersistentVolumeClaim != nil, "persistentVolumeClaim", func(p *field.Path) {
		if v.PersistentVolumeClaim.ClaimName == "" {
			l.required(p.Child("claimName"), "")
		} else {
			subdomain(l, p.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
		}
	})
	source(v.Image != nil, "image", func(p *field.Path) {
		if v.Image.Reference == "" {
			l.required(p.Child("reference"), "")
		}
		oneOf(l, p.Child("pullPolicy"), v.Image.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	})
	source(v.Secret != nil, "secret", func(p *field.Path) {
		if v.Secret.SecretName == "" {
			l.required(p.Child("secretName"), "")
		}
		l.mode(p.Child("defaultMode"), v.Secret.DefaultMode)
		l.items(v.Secret.Items, p.Child("items"), nil)
	})
	source(v.ConfigMap != nil, "configMap", func(p *field.Path) {
		if v.ConfigMap.Name == "" {
			l.required(p.Child("name"), "")
		}
		l.mode(p.Child("defaultMode"), v.ConfigMap.DefaultMode)
		l.items(v.ConfigMap.Items, p.Child("items"), nil)
	})
	source(v.DownwardAPI != nil, "downwardAPI", func(p *field.Path) {
		l.mode(p.Child("defaultMode"), v.DownwardAPI.DefaultMode)
		l.files(v.DownwardAPI.Items, p.Child("items"), nil)
	})
	source(v.Projected != nil, "projected", func(p *field.Path) { l.projected(v.Projected, p) })
}

func (l *list) projected(v *corev1.ProjectedVolumeSource, p *field.Path) {
	l.mode(p.Child("defaultMode"), v.DefaultMode)
	paths := map[string]bool{}
	for i := range v.Sources {
		s, at := &v.Sources[i], p.Child("sources").Index(i)
		n := 0
		if s.Secret != nil {
			n++
			if s.Secret.Name == "" {
				l.required(at.Child("secret", "name"), "")
			}
			l.items(s.Secret.Items, at.Child("secret", "items"), paths)
		}
		if s.ConfigMap != nil {
			n++
			if s.ConfigMap.Name == "" {
				l.required(at.Child("configMap", "name"), "")
			}
			l.items(s.ConfigMap.Items, at.Child("configMap", "items"), paths)
		}
		if s.DownwardAPI != nil {
			n++
			l.files(s.DownwardAPI.Items, at.Child("downwardAPI", "items"), paths)
		}
		if n > 1 {
			l.forbidden(at, "may not specify more than 1 volume type per source")
		}
	}
}

// items checks the mapping of keys to files. The map paths collects the files of a projected
// volume's sources, to find duplicates; it is nil for other volumes.
func (l *list) items(items []corev1.KeyToPath, p *field.Path, paths map[string]bool) {
	for i, item := range items {
		at := p.Index(i)
		if item.Key == "" {
			l.required(at.Child("key"), "")
		}
		l.file(item.Path, at.Child("path"), paths)
		l.mode(at.Child("mode"), item.Mode)
	}
}

func (l *list) files(files []corev1.DownwardAPIVolumeFile, p *field.Path, paths map[string]bool) {
	for i, f := range files {
		at := p.Index(i)
		l.file(f.Path, at.Child("path"), paths)
		l.mode(at.Child("mode"), f.Mode)
		switch {
		case f.FieldRef != nil && f.ResourceFieldRef != nil:
			l.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		case f.FieldRef != nil:
			l.fieldRef(f.FieldRef, at.Child("fieldRef"), fileFields)
		case f.ResourceFieldRef != nil:
			l.resourceRef(f.ResourceFieldRef, at.Child("resourceFieldRef"), true)
		default:
			l.required(at, "one of fieldRef and resourceFieldRef is required")
		}
	}
}

func (l *list) file(path string, p *field.Path, paths map[string]bool) {
	if path == "" {
		l.required(p, "")
		return
	}
	fileName(l, p, path)
	if paths[path] {
		l.invalid(p, path, "conflicting duplicate paths")
	}
	if paths != nil {
		paths[path] = true
	}
}
