// webhook-adapter-server answers the webhook adapter of resourceconsist-controller and keeps in memory who is in
// traffic: a start for one that tells a real system. See docs/adapters/webhook.md.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"sync"
)

const version = "webhook.resource-consist.kusionstack.io/v1"

type member struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Serve     bool     `json:"serve"`
	Revision  string   `json:"revision"`
	Serving   bool     `json:"serving"`
}

type message struct { // a request, and the answer to it
	APIVersion string               `json:"apiVersion"`
	Action     string               `json:"action,omitempty"`
	Employer   struct{ UID string } `json:"employer"`
	Members    []member             `json:"members"`
}

type server struct{ held sync.Map } // members, by the employer's uid and the member's id

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q message
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.APIVersion != version {
		http.Error(w, "this is no request of "+version, http.StatusBadRequest)
		return
	}
	answer := message{APIVersion: version, Members: []member{}}
	for _, m := range q.Members {
		key := [2]string{q.Employer.UID, m.ID}
		if q.Action == "apply" { // here a real system is told, and Serving is what it says
			m.Serving = m.Serve
			s.held.Store(key, m)
		} else if known, ok := s.held.Load(key); ok {
			m = known.(member)
		} // a member that is not known is out of traffic
		answer.Members = append(answer.Members, m)
	}
	s.held.Range(func(key, m any) bool {
		if len(q.Members) == 0 && key.([2]string)[0] == q.Employer.UID { // all are asked about
			answer.Members = append(answer.Members, m.(member))
		}
		return true
	})
	_ = json.NewEncoder(w).Encode(answer)
}

func main() { // arguments: where to listen, a certificate, its key
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], &server{}))
}
