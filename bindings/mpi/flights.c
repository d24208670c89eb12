/*
 * Calls in flight. A thread for each communicator waits for them and completes MPI's requests: in
 * order, as they end. One thread for several communicators would hold back what has ended on one
 * for what another rank has yet to start on another.
 */
#include <stdlib.h>

#include "parts.h"

/* Waits for them, one after the other, and completes what MPI knows of them. */
static void *wait_for_all(void *argument)
{
    struct served *served = argument;
    struct flight *flight;

    for (;;) {
        pthread_mutex_lock(&served->lock);
        while (served->first == NULL && !served->is_over)
            pthread_cond_wait(&served->changed, &served->lock);
        flight = served->first;
        if (flight != NULL) {
            served->first = flight->next;
            if (served->first == NULL)
                served->last = &served->first;
        }
        pthread_mutex_unlock(&served->lock);
        if (flight == NULL)
            return NULL;
        if (xdp_agg_wait(flight->call, -1) != XDP_AGG_SUCCESS) {
            say("MPI_Iallreduce: %s", xdp_agg_last_error());
            flight->error = code_of(xdp_agg_last_error());
        }
        xdp_agg_request_free(flight->call);
        /* A thread that waits for it may free it at once. */
        PMPI_Grequest_complete(flight->request);
    }
}

static int query(void *argument, MPI_Status *status)
{
    struct flight *flight = argument;

    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return flight->error;
}

static int release(void *argument)
{
    free(argument);
    return MPI_SUCCESS;
}

/* Collective calls cannot be cancelled. */
static int refuse_cancel(void *argument, int complete)
{
    (void)argument;
    (void)complete;
    return MPI_SUCCESS;
}

int hand_over(struct served *served, struct flight *flight, MPI_Request *request)
{
    int result = PMPI_Grequest_start(query, release, refuse_cancel, flight, &flight->request);

    if (result != MPI_SUCCESS)
        return result;
    *request = flight->request;
    pthread_mutex_lock(&served->lock);
    *served->last = flight;
    served->last = &flight->next;
    pthread_cond_signal(&served->changed);
    pthread_mutex_unlock(&served->lock);
    return MPI_SUCCESS;
}

bool has_waiter(struct served *served)
{
    bool there;

    pthread_mutex_lock(&served->lock);
    if (!served->has_waiter)
        served->has_waiter = pthread_create(&served->waiter, NULL, wait_for_all, served) == 0;
    there = served->has_waiter;
    pthread_mutex_unlock(&served->lock);
    return there;
}

void end_waiter(struct served *served)
{
    if (!served->has_waiter)
        return;
    pthread_mutex_lock(&served->lock);
    served->is_over = true;
    pthread_cond_signal(&served->changed);
    pthread_mutex_unlock(&served->lock);
    pthread_join(served->waiter, NULL);
    served->has_waiter = false;
}
