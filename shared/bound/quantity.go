package bound

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Digits is how far a quantity may be from 1: between 1e-18 and 1e18, and 0.
const Digits = 18

// most is the greatest quantity, and what scale and digits beyond it are for: a number
// that is written in an unusual way.
var most = new(big.Int).Exp(big.NewInt(10), big.NewInt(Digits), nil)

const written = 2 * Digits

// ParseQuantity reads a quantity such as 100Mi in bounded time.
func ParseQuantity(s string) (resource.Quantity, error) {
	if err := QuantityText(s); err != nil {
		return resource.Quantity{}, err
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return resource.Quantity{}, err
	}
	return q, Quantity(q)
}

// QuantityText tells whether a text can be read as a quantity in bounded time. One that
// is none at all can: that is for the one who reads it to say. Blanks around it count for
// nothing, as in JSON.
func QuantityText(s string) error {
	s = strings.TrimSpace(s)
	if len(s) > MaxNumber {
		return fmt.Errorf("quantity %.20s… has %d characters, at most %d are read", s, len(s), MaxNumber)
	}
	at := strings.LastIndexAny(s, "eE")
	if at < 0 {
		return nil
	}
	exponent := strings.TrimLeft(strings.TrimLeft(s[at+1:], "+-"), "0")
	if strings.Trim(exponent, "0123456789") != "" {
		return nil // no exponent: a suffix such as Ei, or no quantity
	}
	if n, _ := strconv.Atoi(exponent); len(exponent) > 2 || n > written {
		return beyond(s)
	}
	return nil
}

// Quantity tells whether a quantity is 0, or between 1e-18 and 1e18, and written so that
// comparing, adding and encoding it is cheap: it looks at how it is written, for any
// arithmetic could be what must not be done.
func Quantity(q resource.Quantity) error {
	d := q.AsDec() // of a copy; unscaled * 10^-scale
	scale, unscaled := int64(d.Scale()), d.UnscaledBig()
	if scale < -written || scale > written || unscaled.BitLen() > 256 {
		return beyond("with " + fmt.Sprint(-scale) + " decimal places")
	}
	if unscaled.Sign() == 0 {
		return nil
	}
	magnitude, ten := new(big.Int).Abs(unscaled), big.NewInt(10)
	power := new(big.Int).Exp(ten, big.NewInt(max(scale, -scale)), nil)
	switch {
	case scale <= 0 && magnitude.Mul(magnitude, power).Cmp(most) > 0,
		scale > 0 && magnitude.Cmp(new(big.Int).Mul(power, most)) > 0,
		scale > 0 && magnitude.Mul(magnitude, most).Cmp(power) < 0:
		return beyond(q.String())
	}
	return nil
}

func beyond(s string) error {
	return fmt.Errorf("quantity %.40s is beyond 1e-%d to 1e%d: write one that a machine can have", s, Digits, Digits)
}
