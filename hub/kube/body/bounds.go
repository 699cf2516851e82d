package body

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/shared/bound"
)

// CheckCost refuses JSON or protobuf whose decoding as this kind would need too much memory.
func CheckCost(b []byte, media string, kind schema.GroupVersionKind) error {
	into, err := resource.Scheme.New(kind)
	if err != nil {
		into = nil // an unknown kind is not decoded
	}
	if media == resource.MediaProto {
		err = bound.Proto(b, into)
	} else {
		err = bound.JSON(b, into)
	}
	if err != nil {
		return apierrors.NewBadRequest(kind.Kind + " cannot be read: " + err.Error())
	}
	return nil
}

// CheckBounds checks a decoded object against the limits of all input, before the object is
// compared with others. A new object has no name in the path, so its own name is used.
func CheckBounds(o runtime.Object, kind schema.GroupVersionKind, name string) error {
	if err := bound.Field(o); err != nil {
		if m, ok := o.(metav1.Object); ok && name == "" {
			name = bound.Text(m.GetName(), validation.DNS1123SubdomainMaxLength)
		}
		return apierrors.NewInvalid(kind.GroupKind(), name, field.ErrorList{
			{Type: field.ErrorTypeInvalid, Field: err.Field, BadValue: field.OmitValueType{}, Detail: err.Err.Error()}})
	}
	return nil
}
