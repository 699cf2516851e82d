package listen

import "testing"

func TestSharesAreLimitedPerUser(t *testing.T) {
	s := Shares{Most: 2}
	first, ok := s.Enter("anna")
	_, again := s.Enter("anna")
	if _, more := s.Enter("anna"); !ok || !again || more {
		t.Errorf("anna gets not exactly her share: %v %v %v", ok, again, more)
	}
	other, ok := s.Enter("olav")
	if !ok {
		t.Error("olav does not get his own share")
	}
	first()
	if _, ok := s.Enter("anna"); !ok {
		t.Error("anna cannot enter again after she has left")
	}
	if other(); len(s.by) != 1 {
		t.Errorf("users who hold nothing are stored: %v", s.by)
	}
}
