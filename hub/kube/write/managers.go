package write

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/openapi"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// Managers maintain managedFields, the record of each field's manager.
type Managers struct {
	settings admission.Settings

	mu       sync.Mutex
	managers map[managerKey]*managedfields.FieldManager
}

type managerKey struct {
	res *resource.Resource
	sub string
}

// NewManagers returns the field managers of all resources.
func NewManagers(s admission.Settings) *Managers {
	return &Managers{settings: s, managers: map[managerKey]*managedfields.FieldManager{}}
}

// Default sets the defaults of an applied object.
func (a *Managers) Default(o runtime.Object) {
	if o, ok := o.(state.Object); ok && state.KindOf(o) != "" {
		admission.Default(o, a.settings)
	}
}

// of returns the manager of a resource's fields.
func (a *Managers) of(r *resource.Resource, sub string) (*managedfields.FieldManager, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := managerKey{r, sub}
	if m := a.managers[key]; m != nil {
		return m, nil
	}
	tc, err := typeConverter()
	if err != nil {
		return nil, err
	}
	m, err := managedfields.NewDefaultFieldManager(tc, resource.Scheme, a, resource.Scheme, r.GroupVersionKind,
		r.GroupVersion(), sub, resets(r, sub))
	if err != nil {
		return nil, fmt.Errorf("keep the managed fields of %s: %w", r.Plural, err)
	}
	a.managers[key] = m
	return m, nil
}

// resets returns the fields that a path never changes, so that writers do not become their
// managers.
func resets(r *resource.Resource, sub string) map[fieldpath.APIVersion]fieldpath.Filter {
	version := fieldpath.APIVersion(r.GroupVersion().String())
	var set *fieldpath.Set
	switch {
	case sub == "resize":
		return map[fieldpath.APIVersion]fieldpath.Filter{version: onlyResources}
	case sub == "ephemeralcontainers":
		return map[fieldpath.APIVersion]fieldpath.Filter{version: onlyEphemeral}
	case sub == "status":
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"))
	case sub == "approval":
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"),
			fieldpath.MakePathOrDie("metadata", "annotations"), fieldpath.MakePathOrDie("status", "certificate"))
	case r.Sub("status") != nil && r.State != state.Nodes:
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	default:
		return nil
	}
	return map[fieldpath.APIVersion]fieldpath.Filter{version: fieldpath.NewExcludeSetFilter(set)}
}

// onlyEphemeral are the fields that pods/ephemeralcontainers may change.
var onlyEphemeral = fieldpath.NewIncludeMatcherFilter(fieldpath.MakePrefixMatcherOrDie("spec", "ephemeralContainers"))

// onlyResources are the fields that pods/resize may change.
var onlyResources = fieldpath.NewIncludeMatcherFilter(
	fieldpath.MakePrefixMatcherOrDie("spec", "containers", fieldpath.MatchAnyPathElement(), "resources"),
	fieldpath.MakePrefixMatcherOrDie("spec", "containers", fieldpath.MatchAnyPathElement(), "resizePolicy"),
	fieldpath.MakePrefixMatcherOrDie("spec", "initContainers", fieldpath.MatchAnyPathElement(), "resources"),
	fieldpath.MakePrefixMatcherOrDie("spec", "initContainers", fieldpath.MatchAnyPathElement(), "resizePolicy"),
)

// update records manager as the manager of the fields in next that differ from live, or of all
// fields if live is nil.
func (a *Managers) update(r *resource.Resource, live, next state.Object, manager, sub string) error {
	m, err := a.of(r, sub)
	if err != nil {
		return err
	}
	var was runtime.Object
	if live == nil {
		if was, err = resource.Scheme.New(r.GroupVersionKind); err != nil {
			return err
		}
		was.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
	} else {
		was = r.Show(live)
	}
	out := m.UpdateNoErrors(was, r.Show(next), manager)
	if o, ok := out.(state.Object); ok {
		next.SetManagedFields(o.GetManagedFields())
	}
	return nil
}

// typeConverter has the schemas for server-side apply, which are the ones that clients get. The
// first use reads them.
var typeConverter = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	schemas, err := openapi.Schemas()
	if err != nil {
		return nil, fmt.Errorf("read the API's schemas: %w", err)
	}
	c, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, fmt.Errorf("take the API's schemas for server-side apply: %w", err)
	}
	return c, nil
})
