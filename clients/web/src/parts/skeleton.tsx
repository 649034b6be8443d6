/** The placeholder of content that is being loaded. */

export const Skeleton = () => <div class="skeleton" role="status" aria-label="Loading" />;
