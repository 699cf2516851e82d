package kube

import (
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
)

// readDeletion reads and checks the options of a deletion.
func (c *call) readDeletion() (*metav1.DeleteOptions, resource.Form, error) {
	o, err := c.deleteOptions()
	if err != nil {
		return nil, resource.Form{}, err
	}
	if errs := validation.ValidateDeleteOptions(o); len(errs) > 0 {
		return nil, resource.Form{},
			apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	if err := c.refuseNodeLeases(); err != nil {
		return nil, resource.Form{}, err
	}
	//lint:ignore SA1019 older clients still send it
	if c.res.State == state.Jobs && o.PropagationPolicy == nil && o.OrphanDependents == nil {
		c.warn("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove " +
			"them or set propagationPolicy=Orphan to suppress this warning")
	}
	f, err := resource.Negotiate(c.r, c.res.Media())
	return o, f, err
}

func (c *call) delete() error {
	o, f, err := c.readDeletion()
	if err != nil {
		return err
	}
	w := c.request()
	st, err := c.commit(len(o.DryRun) > 0, func(s state.Snapshot, now time.Time) (write.Step, error) {
		return w.Delete(s, o, now)
	})
	if err != nil {
		return err
	}
	gone := len(st.Changes) > 0 && st.Changes[0].Delete
	if !gone || c.res.State == state.Pods || c.res.State == state.Namespaces {
		return c.write(http.StatusOK, c.res.Show(st.Result), f.Media)
	}
	return c.write(http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: c.name, Group: c.res.Group, Kind: c.res.Plural, UID: st.Result.GetUID()},
	}, f.Media)
}

func (c *call) deleteCollection() error {
	o, f, err := c.readDeletion()
	if err != nil {
		return err
	}
	list, sel, err := c.options(c.res.State)
	if err != nil {
		return err
	}
	w := c.request()
	var gone []state.Object
	_, err = c.commit(len(o.DryRun) > 0, func(s state.Snapshot, now time.Time) (write.Step, error) {
		gone = nil
		for live := range c.view.Walk(s, sel, "", "") {
			if list.Limit > 0 && int64(len(gone)) == list.Limit {
				break
			}
			gone = append(gone, live)
		}
		return w.DeleteAll(gone, o, now)
	})
	if err != nil {
		return err
	}
	answer, err := c.view.Many(c.res, gone, f,
		metav1.ListMeta{ResourceVersion: resource.FormatRev(c.Fleet.Snapshot().Revision)})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, answer, f.Media)
}
